"""Builds request bodies and parses stream events for each supported HTTP route."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Messages = Sequence[Mapping[str, str]]


class StreamError(Exception):
    """An event violates the format of the route; the message names what was found."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts reported by the server; None where it reports none."""

    num_input_tokens: int | None = None
    num_output_tokens: int | None = None
    num_cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event of a stream."""

    text: str = ""
    finish_reason: str | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of every request."""

    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    ignore_eos: bool = False


class Backend(Protocol):
    """One route of a server."""

    path: str

    def body(self, messages: Messages, sampling: Sampling, *, model: str) -> dict[str, object]: ...

    def parse_event(self, event: Mapping[str, Any]) -> StreamEvent:
        """Raises StreamError."""
        ...


class OpenAIChat:
    """Chat completions; the server applies its chat template."""

    path = "/v1/chat/completions"

    def body(self, messages: Messages, sampling: Sampling, *, model: str) -> dict[str, object]:
        return {"messages": list(messages), **_openai_fields(sampling, model)}

    def parse_event(self, event: Mapping[str, Any]) -> StreamEvent:
        choice = _choice(event)
        delta = choice.get("delta") or {}
        if not isinstance(delta, Mapping):
            raise StreamError(f"choices[0].delta is {delta!r}")
        # Servers with a reasoning parser send reasoning in a separate field.
        texts = [delta.get(name) for name in ("reasoning_content", "reasoning", "content")]
        return StreamEvent(
            "".join(text for text in texts if isinstance(text, str)),
            choice.get("finish_reason"),
            _openai_usage(event),
        )


class OpenAICompletions:
    """Completions of the messages' contents, joined by blank lines, without a template."""

    path = "/v1/completions"

    def body(self, messages: Messages, sampling: Sampling, *, model: str) -> dict[str, object]:
        return {"prompt": plain_text(messages), **_openai_fields(sampling, model)}

    def parse_event(self, event: Mapping[str, Any]) -> StreamEvent:
        choice = _choice(event)
        text = choice.get("text") or ""
        if not isinstance(text, str):
            raise StreamError(f"choices[0].text is {text!r}")
        return StreamEvent(text, choice.get("finish_reason"), _openai_usage(event))


class Native:
    """The native /generate route of this project, with the chat template."""

    path = "/generate"

    def body(self, messages: Messages, sampling: Sampling, *, model: str) -> dict[str, object]:
        return {
            "messages": list(messages),
            "sampling_params": {
                "max_new_tokens": sampling.max_tokens,
                "temperature": sampling.temperature,
                "seed": sampling.seed,
                **({"ignore_eos": True} if sampling.ignore_eos else {}),
            },
            "stream": True,
            "incremental_stream_output": True,
        }

    def parse_event(self, event: Mapping[str, Any]) -> StreamEvent:
        text, meta = event.get("text"), event.get("meta_info")
        if not isinstance(text, str) or not isinstance(meta, Mapping):
            raise StreamError(f"an event with the keys {', '.join(event) or '(none)'}")
        reason = meta.get("finish_reason")
        if reason is None:
            return StreamEvent(text)
        usage = Usage(
            _count(meta, "prompt_tokens"),
            _count(meta, "completion_tokens"),
            _count(meta, "cached_tokens"),
        )
        return StreamEvent(
            text, str(reason.get("type") if isinstance(reason, Mapping) else reason), usage
        )


BACKENDS: Mapping[str, Backend] = {
    "openai-chat": OpenAIChat(),
    "openai": OpenAICompletions(),
    "native": Native(),
}


def plain_text(messages: Messages) -> str:
    return "\n\n".join(message["content"] for message in messages)


def _openai_fields(sampling: Sampling, model: str) -> dict[str, object]:
    return {
        "model": model,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "seed": sampling.seed,
        "stream": True,
        "stream_options": {"include_usage": True},
        **({"ignore_eos": True} if sampling.ignore_eos else {}),
    }


def _choice(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first choice of an event; the usage chunk at the end has none."""
    choices = event.get("choices")
    match choices:
        case []:
            return {}
        case [Mapping() as choice, *_]:
            return choice
    raise StreamError(f"choices is {choices!r}")


def _openai_usage(event: Mapping[str, Any]) -> Usage | None:
    found = event.get("usage")
    if not isinstance(found, Mapping):
        return None
    details = found.get("prompt_tokens_details")
    return Usage(
        _count(found, "prompt_tokens"),
        _count(found, "completion_tokens"),
        _count(details, "cached_tokens") if isinstance(details, Mapping) else None,
    )


def _count(found: Mapping[str, Any], name: str) -> int | None:
    value = found.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
