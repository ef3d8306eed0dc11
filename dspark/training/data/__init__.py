"""Prepares training data: prompts, answers of the target, and its hidden states."""
