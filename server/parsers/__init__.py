"""Parses generated text into content, reasoning and tool calls."""
