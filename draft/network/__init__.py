"""Defines the draft network: block attention, RoPE, Markov head, confidence head, vocabulary."""
