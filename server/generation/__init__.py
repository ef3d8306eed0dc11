"""Turns validated requests into engine requests, and engine events into text deltas."""
