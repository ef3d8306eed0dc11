"""Selects the parsers and grammars of chat output: tool calls and reasoning."""

from collections.abc import Sequence
from typing import Literal

from server.errors.api_errors import ApiError
from server.parsers.message_parts import CallsOnly, NewParser, Parser, PlainTextParser
from server.parsers.reasoning import CLOSE, OPEN, ReasoningParser
from server.parsers.tool_calls import TAGS, ToolFormat, format_of_template, tool_parser
from server.protocol.engine_options import ReasoningRequest
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

_PROMPT_TAIL = 16  # tokens searched for an opening tag at the end of a prompt


class ChatParser:
    """Creates parsers and grammars for chat completions.

    tool_parser `auto` uses the format that the chat template contains, if any.
    """

    def __init__(
        self, *, text: TextCodec, tool_parser: ToolParserName, reasoning_parser: ReasoningParserName
    ) -> None:
        self._text = text
        self._has_reasoning = reasoning_parser == "think"
        self._format: ToolFormat | None = None
        if tool_parser == "auto":
            self._format = format_of_template(text.chat_template)
        elif tool_parser != "none":
            self._format = tool_parser

    def check_tools(self) -> None:
        """Raise ApiError if this model does not support tools."""
        if self._format is None:
            reason = "model.tool_call_parser sets no format, and the chat template has none"
        elif "tools" not in self._text.chat_template:
            reason = "this model's chat template does not accept tools"
        else:
            return
        raise ApiError(
            f"'tools' is not supported here: {reason}", param="tools", code="unsupported_field"
        )

    def reasoning_kwargs(self, request: ReasoningRequest | None) -> dict[str, object]:
        """Return the template's variables. Raises ApiError for reasoning that is not parsed."""
        if request is None:
            return {}
        if self._has_reasoning or not request.is_on:
            return request.template_kwargs()
        raise ApiError(
            f"'{request.field}' is not supported here: this server separates no reasoning; set "
            "model.reasoning_parser",
            param=request.field,
            code="unsupported_field",
        )

    def kept_ids(self, *, has_tools: bool) -> frozenset[int]:
        """Return the special tokens that a parser needs in the text."""
        tags: tuple[str, ...] = (OPEN, CLOSE) if self._has_reasoning else ()
        if has_tools and self._format is not None:
            tags += TAGS[self._format]
        return self._text.ids_of(tags)

    def output_grammar(
        self,
        content: GrammarSpec | None,
        mode: ToolChoiceMode | None,
        *,
        prompt_ids: Sequence[int],
    ) -> OutputGrammar | None:
        """Return the grammar of the output to this prompt; None if it is unconstrained.

        Raises ApiError where this model's tool-call format has no grammar for it.
        """
        if mode is not None and not mode.needs_grammar and content is None:
            mode = None
        if content is None and mode is None:
            return None
        reasoning = None
        if self._has_reasoning:
            reasoning = ReasoningGrammar(
                open=self._tag(OPEN),
                close=self._tag(CLOSE),
                is_open=self._ends_in_open_tag(prompt_ids),
            )
        calls = None if mode is None else self._call_grammar(mode, content)
        return OutputGrammar(content, calls, reasoning)

    def _call_grammar(self, mode: ToolChoiceMode, content: GrammarSpec | None) -> ToolCallGrammar:
        if content is not None and mode.is_required:
            raise ApiError(
                f"'tool_choice' requires a call, and '{content.field}' constrains the content; "
                "send one of them",
                param="tool_choice",
            )
        form = self._format
        allows_text = content is None and not mode.is_required
        if form is None or form == "pythonic" or (form == "llama3_json" and allows_text):
            raise ApiError(
                f"this model's tool-call format ({form}) has no grammar for required calls, or "
                "for calls next to text",
                param="tools" if allows_text else "tool_choice",
                code="unsupported_field",
            )
        tags = [self._tag(text) for text in TAGS[form]] if form != "llama3_json" else []
        return ToolCallGrammar(
            format=form,
            begin=tags[0] if tags else None,
            end=tags[1] if form == "hermes" else None,
            arguments=tuple((tool.name, _arguments(tool)) for tool in mode.tools),
            is_required=mode.is_required,
            is_single=mode.is_single,
        )

    def _tag(self, text: str) -> Tag:
        return Tag(text, self._text.special_id(text))

    def new_parser(
        self, *, tools: Sequence[str], prompt_ids: Sequence[int], is_required: bool = False
    ) -> NewParser:
        """Return a factory of parsers, one per choice. tools: names of the offered tools.

        is_required: the output has calls alone.
        """
        names, is_open = (
            frozenset(tools),
            self._has_reasoning and self._ends_in_open_tag(prompt_ids),
        )

        def make() -> Parser:
            rest: Parser = PlainTextParser()
            if names and self._format is not None:
                rest = tool_parser(self._format, names)
                rest = CallsOnly(rest) if is_required else rest
            return ReasoningParser(rest=rest, is_open=is_open) if self._has_reasoning else rest

        return make

    def _ends_in_open_tag(self, prompt_ids: Sequence[int]) -> bool:
        tail = self._text.decode(prompt_ids[-_PROMPT_TAIL:], skip_special_tokens=False)
        return tail.rstrip().endswith(OPEN)


def _arguments(tool: OfferedTool) -> GrammarSpec:
    try:
        return tool.arguments()
    except ValueError as error:
        raise ApiError(f"'{tool.field}' {error}", param=tool.field) from error
