"""Decides what each step computes: queueing, page reservation, stop cuts. No tensors."""
