"""Converts GGUF files to Hugging Face folders, once, into the cache folder."""
