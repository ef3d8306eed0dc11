"""Defines the error of a training."""


class TrainingError(Exception):
    """A training cannot begin or continue; the message names what was found and is accepted."""
