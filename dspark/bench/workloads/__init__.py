"""Defines what a benchmark runs: prompts, trials of one arm, and their summary tables."""
