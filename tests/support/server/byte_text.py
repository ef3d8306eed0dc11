"""A tokenizer whose ids are bytes."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from jinja2 import TemplateError

from server.text.tokenizer import TextCodec

BOS, EOS, NUM_IDS = 256, 257, 258


class _Marked:
    special = True


class ByteTokenizer:
    """One token per byte of UTF-8, with a BOS that encode adds and a special EOS."""

    chat_template: Any = "tools, role: content"
    added_tokens_decoder: Mapping[int, Any] = MappingProxyType({BOS: _Marked(), EOS: _Marked()})

    def __init__(self) -> None:
        self.all_special_ids = [BOS, EOS]

    def get_vocab(self) -> Mapping[str, int]:
        return {f"<0x{i:02X}>" if i < 256 else str(i): i for i in range(NUM_IDS)}

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [BOS] * add_special_tokens + list(text.encode())

    def decode(
        self,
        token_ids: list[int],
        *,
        skip_special_tokens: bool,
        clean_up_tokenization_spaces: bool,
    ) -> str:
        special = {BOS: b"<s>", EOS: b"</s>"}
        parts = [
            special.get(i) or bytes([i]) for i in token_ids if i < 256 or not skip_special_tokens
        ]
        return b"".join(parts).decode(errors="replace")

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """One line per message, after `opening` and a line of tools."""
        assert options.pop("tokenize") is False
        is_continued = options.pop("continue_final_message", False)
        assert options.pop("add_generation_prompt", False) is not is_continued
        tools, opening = options.pop("tools"), options.pop("opening", "")
        assert options.keys() <= {"enable_thinking", "reasoning_effort"}, options
        if any(message["role"] == "system" for message in conversation[1:]):
            raise TemplateError("system must come first")
        turns = "".join(f"{m['role']}: {m['content']}\n" for m in conversation)
        tool_line = f"tools: {json.dumps(tools)}\n" if tools else ""
        return (
            opening
            + tool_line
            + (turns.removesuffix("\n") if is_continued else f"{turns}assistant: ")
        )


def byte_codec() -> TextCodec:
    return TextCodec(tokenizer=ByteTokenizer())
