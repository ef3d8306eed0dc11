"""Formats measurements: statistics, columns, verdicts, and the environment they were taken in."""
