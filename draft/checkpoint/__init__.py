"""Reads draft checkpoints in DeepSpec's and speculators' formats, and builds the network."""
