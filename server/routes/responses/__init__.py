"""Implements the Responses API: /v1/responses and what it stores."""
