"""What can keep a training from going on, in one line each."""


class TrainingError(Exception):
    """A training cannot begin or continue; the message names what was found and is accepted."""
