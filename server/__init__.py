"""Serves the engine over HTTP: routes, protocol, text, parsers, settings. Imports no torch."""
