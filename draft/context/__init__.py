"""Turns tapped hidden states of committed tokens into context KV in the pool."""
