"""Checks the CUDA path against references and measures it, with random models."""
