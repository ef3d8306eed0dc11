"""Validates request bodies of the native, OpenAI and Anthropic APIs (pydantic models)."""
