"""Speculative decoding with DSpark drafts: Python API, command line, benchmarks and training."""
