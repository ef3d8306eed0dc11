"""Trains a draft for a target: the implementation of `dspark train`.

Importing this package, `config`, `data.prompts` or `data.own_prompts` loads no torch.
"""
