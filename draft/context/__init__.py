"""Writes the draft's context keys and values: stacked over all layers, or layer by layer."""
