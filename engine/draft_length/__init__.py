"""Chooses how many draft tokens each step verifies, from pass costs and acceptance rates."""
