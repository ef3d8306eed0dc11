"""Describes the host and its devices: cores, memory, OpenMP, cache folder, timers."""
