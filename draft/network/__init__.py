"""Defines the draft network: attention, norms, rotary embedding, Markov and confidence heads."""
