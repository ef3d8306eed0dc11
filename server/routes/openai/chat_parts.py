"""Converts parsed output parts to OpenAI chat messages and deltas."""

from collections.abc import Sequence

from server.parsers.message_parts import Content, Part, Reasoning, ToolCall, new_call_id


def message_of(parts: Sequence[Part]) -> dict[str, object]:
    """Return the assistant's message; content is null where it only calls tools."""
    text = "".join(part.text for part in parts if isinstance(part, Content))
    reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
    calls = [part for part in parts if isinstance(part, ToolCall)]
    message: dict[str, object] = {
        "role": "assistant",
        "content": text if text or not calls else None,
        "refusal": None,
    }
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [_call(call.name, call.arguments) for call in calls]
    return message


class ChatDeltas:
    """Converts one choice's parts to deltas. A tool call makes two: the name, the arguments."""

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
                begin = {"index": index, **_call(name, "")}
                rest = {"index": index, "function": {"arguments": arguments}}
                first: dict[str, object] = {} if index else {"content": None}
                return [{**first, "tool_calls": [begin]}, {"tool_calls": [rest]}]


def _call(name: str, arguments: str) -> dict[str, object]:
    return {
        "id": new_call_id(),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
