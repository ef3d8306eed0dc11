"""Compiles C++ kernels on the machine that runs them, and calls them in PyTorch's place."""
