"""Proposes draft tokens without a draft model: lookup of repeated text."""
