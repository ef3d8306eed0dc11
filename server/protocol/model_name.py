"""Checks the model name of a request."""

from server.errors.api_errors import ApiError
from server.errors.validation_errors import shorten


def check_model(requested: str | None, served: str) -> None:
    """Raise ApiError (404) for a name other than the served one; None is accepted."""
    if requested is not None and requested != served:
        raise unknown_model(requested, served)


def unknown_model(requested: str, served: str) -> ApiError:
    return ApiError(
        f"model {shorten(requested)!r} is not served; accepted: {served!r}",
        status=404,
        param="model",
        code="model_not_found",
    )
