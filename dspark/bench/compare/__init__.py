"""Compares two ways to run one workload: speculation, stacked writes, grammars, transformers."""
