"""Measures speed, draft quality and greedy identity; compares arms that run interleaved.

This package itself and `report` load no torch; the HTTP client in `http` does not either.
"""
