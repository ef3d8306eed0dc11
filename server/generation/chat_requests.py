"""Tokenizes chats and selects the parser of their output, for all chat APIs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server.generation.input_processor import FieldNames, InputProcessor, TokenizedRequest
from server.parsers.chat_parser import ChatParser
from server.parsers.message_parts import NewParser
from server.protocol.common import Message, SamplingFields
from server.protocol.engine_options import LogprobOptions, ReasoningRequest
from server.protocol.tools import ToolChoiceMode
from server.text.chat_template import ChatExtras


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A tokenized chat, and a factory of parsers for its choices."""

    tokenized: TokenizedRequest
    new_parser: NewParser


class ChatProcessor:
    """Turns chats into requests with grammars and output parsers."""

    def __init__(self, *, input_processor: InputProcessor, parser: ChatParser) -> None:
        self._input_processor = input_processor
        self._parser = parser

    def reasoning_kwargs(self, request: ReasoningRequest | None) -> dict[str, object]:
        """Return the chat template's variables. Raises ApiError without a reasoning parser."""
        return self._parser.reasoning_kwargs(request)

    async def count_tokens(self, messages: Sequence[Message], extras: ChatExtras) -> int:
        """Count the prompt's tokens. Raises ApiError."""
        self._check_tools(extras)
        ids = await self._input_processor.encode(
            messages, field=FieldNames("messages"), extras=extras
        )
        return len(ids)

    async def tokenize(
        self,
        messages: Sequence[Message],
        fields: SamplingFields,
        *,
        names: tuple[str, ...],
        extras: ChatExtras,
        tool_choice: ToolChoiceMode | None,
        sampling_prefix: str = "",
        logprobs: LogprobOptions | None = None,
    ) -> ChatRequest:
        """Tokenize one chat. Raises ApiError for fields that this model does not support.

        sampling_prefix: path of the object with the sampling fields.
        """
        self._check_tools(extras)
        tokenized = await self._input_processor.process(
            messages,
            fields,
            names=names,
            field=FieldNames("messages", sampling_prefix),
            extras=extras,
            kept_ids=self._parser.kept_ids(has_tools=bool(extras.tools)),
            logprobs=logprobs,
        )
        grammar = self._parser.output_grammar(
            fields.grammar_spec(sampling_prefix), tool_choice, prompt_ids=tokenized.prompt_ids
        )
        tokenized = await self._input_processor.with_grammar(tokenized, grammar)
        new_parser = self._parser.new_parser(
            tools=[_name_of(tool) for tool in extras.tools],
            prompt_ids=tokenized.prompt_ids,
            is_required=tool_choice is not None and tool_choice.is_required,
        )
        return ChatRequest(tokenized, new_parser)

    def _check_tools(self, extras: ChatExtras) -> None:
        if extras.tools:
            self._parser.check_tools()


def _name_of(tool: Mapping[str, Any]) -> str:
    name: str = tool["function"]["name"]
    return name
