"""Defines, loads and renders every setting of the server: YAML, environment and flags."""
