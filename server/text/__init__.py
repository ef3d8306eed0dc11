"""Converts between text and token ids: tokenizer, chat templates, incremental detokenizer."""
