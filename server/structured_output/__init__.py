"""Compiles grammars (JSON schema, regex, EBNF, choice) and masks tokens by them.

Imports nothing here, so that the sandbox process stays small.
"""
