"""The one model that is served, and requests for another."""

from server.errors.api_errors import ApiError


def check_model(asked: str | None, served: str) -> None:
    """Raises ApiError (404) for another name; none at all means the served one."""
    if asked is not None and asked != served:
        raise unknown_model(asked, served)


def unknown_model(asked: str, served: str) -> ApiError:
    return ApiError(
        f"model {asked!r} is not served; accepted: {served!r}",
        status=404,
        param="model",
        code="model_not_found",
    )
