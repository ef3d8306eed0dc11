"""Describes error and stream responses for the OpenAPI document."""

from typing import Any, Literal

from pydantic import BaseModel


class ErrorFields(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every error response."""

    error: ErrorFields


class AnthropicErrorFields(BaseModel):
    type: str
    message: str


class AnthropicErrorBody(BaseModel):
    """The body of every error response of Anthropic's routes."""

    type: Literal["error"]
    error: AnthropicErrorFields


Responses = dict[int | str, dict[str, Any]]

# `default` covers every other status, so that FastAPI adds no 422.
ERRORS: Responses = {"default": {"model": ErrorBody, "description": "An error"}}
ANTHROPIC_ERRORS: Responses = {"default": {"model": AnthropicErrorBody, "description": "An error"}}
COMPLETION: Responses = {
    200: {
        "description": "The completion, or with 'stream' its events",
        "content": {"application/json": {}, "text/event-stream": {}},
    }
}
TEXT: Responses = {200: {"content": {"text/plain": {}}}}
