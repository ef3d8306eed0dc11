"""Kernels for CPUs, compiled on the machine that runs them, with PyTorch as the fallback."""
