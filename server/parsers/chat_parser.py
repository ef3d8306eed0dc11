"""How the served model writes what is not plain text: its calls of tools and its thoughts."""

from collections.abc import Sequence
from typing import Literal

from server.errors.api_errors import ApiError
from server.parsers.message_parts import NewParser, Parser, PlainText
from server.parsers.reasoning import CLOSE, OPEN, ReasoningParser
from server.parsers.tool_calls import MARKS, ToolFormat, format_of_template, tool_parser
from server.protocol.tools import OfferedTool, ToolChoiceMode
from server.structured_output.grammar_spec import GrammarSpec
from server.structured_output.output_grammar import (
    OutputGrammar,
    ReasoningGrammar,
    Tag,
    ToolCallGrammar,
)
from server.text.tokenizer import TextCodec

ToolParserName = Literal["auto", "none", "hermes", "llama3_json", "mistral", "pythonic"]
ReasoningParserName = Literal["none", "think"]

_PROMPT_TAIL = 16  # tokens in which an opening tag at the end of a prompt lies


class ChatParser:
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

    def frame(
        self, answer: GrammarSpec | None, wish: ToolChoiceMode | None, *, prompt_ids: Sequence[int]
    ) -> OutputGrammar | None:
        """What an answer to this prompt keeps to; None where nothing is promised of it.

        Raises ApiError for promises that this model's way to call tools has no grammar for.
        """
        if wish is not None and not wish.needs_grammar and answer is None:
            wish = None
        if answer is None and wish is None:
            return None
        around = None
        if self._thinks:
            is_open = self._ends_thinking(prompt_ids)
            around = ReasoningGrammar(
                open=self._mark(OPEN), close=self._mark(CLOSE), is_open=is_open
            )
        return OutputGrammar(answer, None if wish is None else self._calls(wish, answer), around)

    def _calls(self, wish: ToolChoiceMode, answer: GrammarSpec | None) -> ToolCallGrammar:
        if answer is not None and wish.is_required:
            raise ApiError(
                f"'tool_choice' asks for a call, and '{answer.field}' for an answer; send one",
                param="tool_choice",
            )
        form = self._format
        is_text_beside = answer is None and not wish.is_required
        if form is None or form == "pythonic" or (form == "llama3_json" and is_text_beside):
            raise ApiError(
                f"calls in this model's format ({form}) can be promised neither to be there nor "
                "to keep to a schema where text may stand beside them",
                param="tools" if is_text_beside else "tool_choice",
                code="unsupported_field",
            )
        marks = [self._mark(text) for text in MARKS[form]] if form != "llama3_json" else []
        return ToolCallGrammar(
            format=form,
            begin=marks[0] if marks else None,
            end=marks[1] if form == "hermes" else None,
            arguments=tuple((tool.name, _arguments(tool)) for tool in wish.tools),
            is_required=wish.is_required,
            is_single=wish.is_single,
        )

    def _mark(self, text: str) -> Tag:
        return Tag(text, self._text.special_id(text))

    def new_parser(self, *, tools: Sequence[str], prompt_ids: Sequence[int]) -> NewParser:
        """For each choice of an answer to this prompt one; tools are the names that are offered."""
        names, is_open = frozenset(tools), self._thinks and self._ends_thinking(prompt_ids)

        def make() -> Parser:
            rest: Parser = PlainText()
            if names and self._format is not None:
                rest = tool_parser(self._format, names)
            return ReasoningParser(rest=rest, is_open=is_open) if self._thinks else rest

        return make

    def _ends_thinking(self, prompt_ids: Sequence[int]) -> bool:
        tail = self._text.decode(prompt_ids[-_PROMPT_TAIL:], skip_special_tokens=False)
        return tail.rstrip().endswith(OPEN)


def _arguments(tool: OfferedTool) -> GrammarSpec:
    try:
        return tool.arguments()
    except ValueError as error:
        raise ApiError(f"'{tool.field}' {error}", param=tool.field) from error
