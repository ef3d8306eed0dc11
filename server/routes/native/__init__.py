"""Implements /generate, /tokenize and /detokenize with SGLang's field names."""
