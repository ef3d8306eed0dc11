"""Defines the trainable draft: initial weights, forward pass, losses, export."""
