"""Decoder layers of a target in few CUDA kernels, written in Triton."""
