"""Runs the target model over packed batches: transfers, attention hook, hidden-state taps."""
