"""What the OpenAPI document says of responses: errors have a shape, streams a type."""

from typing import Any, Literal

from pydantic import BaseModel


class ErrorFields(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """What every failure is told as."""

    error: ErrorFields


class AnthropicErrorFields(BaseModel):
    type: str
    message: str


class AnthropicErrorBody(BaseModel):
    """What every failure of Anthropic's routes is told as."""

    type: Literal["error"]
    error: AnthropicErrorFields


Responses = dict[int | str, dict[str, Any]]

# `default` stands for every status that is not named, so the framework adds none of its own.
ERRORS: Responses = {"default": {"model": ErrorBody, "description": "What is wrong"}}
ANTHROPIC_ERRORS: Responses = {
    "default": {"model": AnthropicErrorBody, "description": "What is wrong"}
}
ANSWER: Responses = {
    200: {
        "description": "The answer, or with 'stream' its events",
        "content": {"application/json": {}, "text/event-stream": {}},
    }
}
TEXT: Responses = {200: {"content": {"text/plain": {}}}}
