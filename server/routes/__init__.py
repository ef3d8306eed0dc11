"""Implements the HTTP routes, and builds their response objects and event streams."""
