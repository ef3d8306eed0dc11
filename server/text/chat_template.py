"""Turns a chat into token ids: renders a model's chat template and encodes its text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from server.text.content_tokens import ChatInput, ContentTokens

_KNOWN_MESSAGE = "a message that is known"
_NO_TEMPLATE = "this model has no chat template; accepted: --chat-template FILE, with one"


class ChatTemplateError(ValueError):
    """The model has no chat template, or its template refuses these messages."""


@dataclass(frozen=True, slots=True)
class ChatExtras:
    """Arguments of a chat template in addition to the messages."""

    tools: Sequence[Mapping[str, Any]] = ()
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    continue_final_message: bool = False  # the output continues the assistant's last message
    add_generation_prompt: bool = True  # the prompt ends with the start of the assistant's turn


NO_EXTRAS = ChatExtras()


class TemplateTokenizer(Protocol):
    """The part of a Hugging Face tokenizer that this module uses."""

    chat_template: Any

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...


class ChatTemplate:
    """Renders and encodes chats with one model's template. Thread-safe."""

    def __init__(self, *, tokenizer: TemplateTokenizer, content_tokens: ContentTokens) -> None:
        self._tokenizer = tokenizer
        self._content_tokens = content_tokens

    @property
    def text(self) -> str:
        """The template's text, all texts of a model with several; empty without one."""
        template = self._tokenizer.chat_template or ""
        return template if isinstance(template, str) else str(template)

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        extras: ChatExtras = NO_EXTRAS,
        *,
        special_tokens_in_content: bool = False,
    ) -> list[int]:
        """Encode a chat up to the start of the assistant's turn.

        Adds no special tokens, because the template contains them. Texts of special tokens in the
        content are plain text, unless special_tokens_in_content is set. Raises ChatTemplateError.
        """
        if not self.text:
            raise ChatTemplateError(_NO_TEMPLATE)
        chat = {
            "messages": [dict(message) for message in messages],
            "tools": [dict(tool) for tool in extras.tools] or None,
            **extras.template_kwargs,
        }
        render = partial(self._render, _ending(extras))
        if special_tokens_in_content or not self._content_tokens.are_in(chat):
            return self._token_ids(render(chat))
        if not self._content_tokens.can_encode:
            raise ChatTemplateError(
                "a message contains the text of a special token, which this model's tokenizer "
                "cannot encode as text; leave it out, or set server.special_tokens_in_content"
            )
        return self._content_tokens.encode(chat, render)

    def _render(self, turn: Mapping[str, bool], chat: ChatInput) -> str:
        """Return the text of the chat template. Raises ChatTemplateError."""
        options = {name: value for name, value in chat.items() if name != "messages"}
        try:
            text: str = self._tokenizer.apply_chat_template(
                chat["messages"], tokenize=False, **turn, **options
            )
            text.encode()  # tool arguments may contain a lone surrogate
        except Exception as error:  # a template may raise anything
            raise ChatTemplateError(f"the chat template refuses these messages: {error}") from error
        return text

    def around_user_message(self) -> tuple[list[int], list[int]]:
        """Return the tokens before a first user message, and those after it.

        Renders a known message. Raises ChatTemplateError unless the template contains it once,
        unchanged.
        """
        if not self.text:
            raise ChatTemplateError(_NO_TEMPLATE)
        try:
            text = self._tokenizer.apply_chat_template(
                [{"role": "user", "content": _KNOWN_MESSAGE}], tokenize=False
            )
        except Exception as error:  # a template may raise anything
            raise ChatTemplateError(f"the chat template refuses a user message: {error}") from error
        before, *after = text.split(_KNOWN_MESSAGE)
        if len(after) != 1 or not before:
            raise ChatTemplateError(
                "this chat template does not show where a user's message begins: a message occurs "
                f"{len(after)} times, after {len(before)} characters; accepted: once, after some"
            )
        # A space before the message is part of the message's first token.
        return self._token_ids(before.rstrip(" ")), self._token_ids(after[0].lstrip(" "))

    def _token_ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


def _ending(extras: ChatExtras) -> dict[str, bool]:
    """Return the template's options for the end of the prompt."""
    if extras.continue_final_message:
        return {"continue_final_message": True}
    return {"add_generation_prompt": True} if extras.add_generation_prompt else {}
