"""Helpers shared by tests: fakes, tiny models, fixtures and paths."""
