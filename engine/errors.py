"""Defines every error that the engine reports to its caller.

EngineError
  RequestRejected    this request cannot be served             -> 400
  EngineBusy         no room now; worth trying again           -> 429
  EngineDraining     shutting down; use another server         -> 503
  RequestFailed      this request's own code raised           -> 500
  EngineDead         the step loop has stopped                 -> 503
  LoadError          a model cannot be served                  -> refused at start
"""


class EngineError(Exception):
    """Base class; `str(error)` is a message for users."""


class RequestRejected(EngineError):
    """Refuses a request that cannot be served. `param` names the field at fault."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class EngineBusy(EngineError):
    """Refuses a request while the queue is full."""


class EngineDraining(EngineError):
    """Refuses new requests while the engine shuts down."""


class RequestFailed(EngineError):
    """Reports that one request ended with FinishReason.ERROR; other requests go on.

    The message names the id under which the log has the details.
    """


class EngineDead(EngineError):
    """Reports that the step loop has stopped; this engine produces no more events."""


class LoadError(EngineError):
    """Refuses a target or draft. The message names field, found and accepted."""


def os_error_text(error: OSError) -> str:
    """Return the system's message for users: "prompts.jsonl: Permission denied"."""
    if error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
