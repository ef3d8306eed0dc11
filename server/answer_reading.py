"""How the served model writes what is not plain text: its calls of tools and its thoughts."""

from collections.abc import Sequence
from typing import Literal

from server.errors import ApiError
from server.parts import NewParser, Parser, PlainText
from server.text import TextCodec
from server.thoughts import CLOSE, OPEN, Thinking
from server.tool_calls import MARKS, ToolFormat, format_of_template, tool_parser

ToolParserName = Literal["auto", "none", "hermes", "llama3_json", "mistral", "pythonic"]
ReasoningParserName = Literal["none", "think"]

_PROMPT_TAIL = 16  # tokens in which an opening tag at the end of a prompt lies


class AnswerReading:
    """Makes the parsers of answers to chats.

    tool_parser `auto` is the format that the chat template shows, if any.
    """

    def __init__(
        self, *, text: TextCodec, tool_parser: ToolParserName, reasoning_parser: ReasoningParserName
    ) -> None:
        self._text = text
        self._thinks = reasoning_parser == "think"
        self._format: ToolFormat | None = None
        if tool_parser == "auto":
            self._format = format_of_template(text.chat_template)
        elif tool_parser != "none":
            self._format = tool_parser

    def check_tools(self) -> None:
        """Raises ApiError where tools cannot be offered."""
        if self._format is None:
            reason = "model.tool_call_parser names no format, and the chat template shows none"
        elif "tools" not in self._text.chat_template:
            reason = "this model's chat template takes no tools"
        else:
            return
        raise ApiError(
            f"'tools' is not served here: {reason}", param="tools", code="unsupported_field"
        )

    def kept_ids(self, *, has_tools: bool) -> frozenset[int]:
        """Special tokens that stay in the text, because a parser looks for them."""
        marks: tuple[str, ...] = (OPEN, CLOSE) if self._thinks else ()
        if has_tools and self._format is not None:
            marks += MARKS[self._format]
        return self._text.ids_of(marks)

    def new_parser(self, *, tools: Sequence[str], prompt_ids: Sequence[int]) -> NewParser:
        """For each choice of an answer to this prompt one; tools are the names that are offered."""
        names, is_open = frozenset(tools), self._thinks and self._ends_thinking(prompt_ids)

        def make() -> Parser:
            rest: Parser = PlainText()
            if names and self._format is not None:
                rest = tool_parser(self._format, names)
            return Thinking(rest=rest, is_open=is_open) if self._thinks else rest

        return make

    def _ends_thinking(self, prompt_ids: Sequence[int]) -> bool:
        tail = self._text.decode(prompt_ids[-_PROMPT_TAIL:], skip_special_tokens=False)
        return tail.rstrip().endswith(OPEN)
