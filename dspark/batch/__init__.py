"""Answers files of requests in OpenAI's batch format."""
