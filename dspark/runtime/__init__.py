"""Finds and loads what a command or a Python program runs: target, draft, tokenizer, engine."""
