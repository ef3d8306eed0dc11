"""The parts of an answer as the OpenAI chat API tells them, whole and in pieces."""

from collections.abc import Sequence
from uuid import uuid4

from server.parsers.message_parts import Content, Part, Reasoning, ToolCall

_ID_CHARS = 9  # exactly: Mistral's templates refuse a conversation with other ids


def message_of(parts: Sequence[Part]) -> dict[str, object]:
    """The assistant's message; its content is null where it only calls tools."""
    text = "".join(part.text for part in parts if isinstance(part, Content))
    thoughts = "".join(part.text for part in parts if isinstance(part, Reasoning))
    calls = [part for part in parts if isinstance(part, ToolCall)]
    message: dict[str, object] = {
        "role": "assistant",
        "content": text if text or not calls else None,
        "refusal": None,
    }
    if thoughts:
        message["reasoning_content"] = thoughts
    if calls:
        message["tool_calls"] = [
            _call(call.name, call.arguments, call_id=new_call_id()) for call in calls
        ]
    return message


class ChatDeltas:
    """One choice's parts as deltas. A call comes as two: what is called, then its arguments."""

    def __init__(self) -> None:
        self._num_calls = 0

    def of(self, part: Part) -> list[dict[str, object]]:
        match part:
            case Content(text):
                return [{"content": text}]
            case Reasoning(text):
                return [{"reasoning_content": text}]
            case ToolCall(name, arguments):
                index, self._num_calls = self._num_calls, self._num_calls + 1
                begun = {"index": index, **_call(name, "", call_id=new_call_id())}
                rest = {"index": index, "function": {"arguments": arguments}}
                return [{"tool_calls": [begun]}, {"tool_calls": [rest]}]


def new_call_id() -> str:
    return uuid4().hex[:_ID_CHARS]


def _call(name: str, arguments: str, *, call_id: str) -> dict[str, object]:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
