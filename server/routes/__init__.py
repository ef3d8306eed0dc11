"""Implements the HTTP routes: one folder per API, and what the APIs share at the root."""
