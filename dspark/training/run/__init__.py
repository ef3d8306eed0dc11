"""Runs a training: pipeline, optimisation loop, checkpoints, journal, model card."""
