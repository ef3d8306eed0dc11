"""Checks the shape of responses and returns what tests look at."""

import json
from typing import Any


def error_of(response: Any, status: int = 400) -> dict[str, Any]:
    """The error of an OpenAI-style error body with this status."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error


def events_of(stream: str) -> list[Any]:
    """The events of an SSE body without the final [DONE], which must be there."""
    blocks = stream.removesuffix("\n\n").split("\n\n")
    assert all(block.startswith("data: ") for block in blocks), blocks
    assert blocks[-1] == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-1]]
