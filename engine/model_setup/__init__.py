"""Prepares loaded models for serving: backend selection, self-checks, memory plan, pool size."""
