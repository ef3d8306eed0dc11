"""Everything that the engine can report to its caller.

EngineError
  RequestRejected    this request cannot be served as asked    -> 400
  EngineBusy         no room now; worth trying again           -> 429
  EngineDraining     shutting down; ask another server         -> 503
  RequestFailed      this request's own code raised           -> 500
  EngineDead         the step loop has stopped                 -> 503
  LoadError          a model cannot be served                  -> refused at start
"""


class EngineError(Exception):
    """Base of everything below; `str(error)` is fit for a user's eyes."""


class RequestRejected(EngineError):
    """The request cannot be served as asked. `param` names the field at fault."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class EngineBusy(EngineError):
    """The queue is full."""


class EngineDraining(EngineError):
    """The engine is shutting down and takes no new requests."""


class RequestFailed(EngineError):
    """One request ended with FinishReason.ERROR; other requests go on.

    The message names the id under which the log has the details.
    """


class EngineDead(EngineError):
    """The step loop has stopped; nothing more will come out of this engine."""


class LoadError(EngineError):
    """A target or draft cannot be served. The message names field, found and accepted."""


def os_error_text(error: OSError) -> str:
    """What the system said, for a user's eyes: "prompts.jsonl: Permission denied"."""
    if error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
