"""Turns logits into tokens: processors, token masks, rejection sampling, log probabilities."""
