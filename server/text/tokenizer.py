"""Encodes text and chats to token ids, and creates decoders."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol

from server.text.content_tokens import ChatInput, ContentTokens
from server.text.detokenizer import ByteDecoder, Decoder, WindowDecoder
from server.text.token_bytes import ByteLevelTokens, TokenTexts, TokenTokenizer

_KNOWN_MESSAGE = "a message that is known"
_NO_LIMIT = 10**30  # as in transformers

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


class Tokenizer(TokenTokenizer, Protocol):
    """The part of a Hugging Face tokenizer that this module uses."""

    chat_template: Any
    all_special_ids: list[int]
    added_tokens_decoder: Mapping[int, Any]

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...


class TextCodec:
    """Encodes and decodes with one model's tokenizer and chat template. Thread-safe."""

    def __init__(self, *, tokenizer: Tokenizer) -> None:
        # The first call removes truncation and padding of a fast tokenizer. Make it here, because
        # it must not change while another thread reads it.
        tokenizer.encode("", add_special_tokens=False)
        self._tokenizer = tokenizer
        self.tokens = TokenTexts(tokenizer=tokenizer)
        self._is_byte_level = self.tokens.are_byte_level()
        self._bytes_without: Callable[[frozenset[int]], ByteLevelTokens] = lru_cache(maxsize=8)(
            lambda skipped: ByteLevelTokens(self.tokens, skipped=skipped)
        )
        self._ids = tokenizer.get_vocab()
        self._num_ids = 1 + max(self._ids.values())
        marked = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._special_ids = frozenset(tokenizer.all_special_ids) | marked
        self._names = {i: name for name, i in self._ids.items() if i in self._special_ids}
        self._content_tokens = ContentTokens(
            backend=getattr(tokenizer, "backend_tokenizer", None),
            special_ids={name: i for i, name in self._names.items()},
        )

    @classmethod
    def load(
        cls,
        folder: Path | str,
        *,
        revision: str | None = None,
        trust_remote_code: bool = False,
        chat_template: str | None = None,
    ) -> "TextCodec":
        """Load the tokenizer of a model folder or hub id. Raises OSError or ValueError.

        chat_template: Jinja text that replaces the model's template.
        """
        from transformers import AutoTokenizer  # heavy: imported on use

        tokenizer = AutoTokenizer.from_pretrained(
            str(folder), revision=revision, trust_remote_code=trust_remote_code
        )
        tokenizer.model_max_length = _NO_LIMIT  # each request checks its length
        if chat_template is not None:
            tokenizer.chat_template = chat_template
        return cls(tokenizer=tokenizer)

    @property
    def chat_template(self) -> str:
        """The template's text, all texts of a model with several; empty without one."""
        template = self._tokenizer.chat_template or ""
        return template if isinstance(template, str) else str(template)

    def ids_of(self, tokens: Iterable[str]) -> frozenset[int]:
        """Return the ids of the texts that are single tokens."""
        return frozenset(self._ids[token] for token in tokens if token in self._ids)

    def token_bytes(self, count: int) -> list[bytes | None]:
        """Return the bytes of the first `count` ids; None for special tokens and unused ids.

        Takes about a second for a large vocabulary.
        """
        text_ids = set(self._ids.values()) - self._special_ids
        return [self.tokens.bytes(i) if i in text_ids else None for i in range(count)]

    def special_id(self, token: str) -> int | None:
        """Return the id of the special token with this text; None if there is none."""
        token_id = self._ids.get(token)
        return token_id if token_id in self._special_ids else None

    @property
    def has_chat_template(self) -> bool:
        return bool(self._tokenizer.chat_template)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def encode_chat(
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
        if not self.has_chat_template:
            raise ChatTemplateError(_NO_TEMPLATE)
        chat = {
            "messages": [dict(message) for message in messages],
            "tools": [dict(tool) for tool in extras.tools] or None,
            **extras.template_kwargs,
        }
        render = partial(self._render, _ending(extras))
        if special_tokens_in_content or not self._content_tokens.are_in(chat):
            return self.encode(render(chat), add_special_tokens=False)
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

    def description(self) -> dict[str, object]:
        """Return what clients need to use the tokenizer: its class, template and special tokens."""
        names = ("bos_token", "eos_token", "pad_token", "unk_token")
        return {
            "tokenizer_class": type(self._tokenizer).__name__,
            "chat_template": self.chat_template or None,
            **{name: getattr(self._tokenizer, name, None) for name in names},
        }

    def user_turn(self) -> tuple[list[int], frozenset[int]]:
        """Return the tokens before a first user message, and the special tokens that may end it.

        Renders a known message. Raises ChatTemplateError unless the template contains it once,
        unchanged.
        """
        if not self.has_chat_template:
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
        opening = self.encode(before.rstrip(" "), add_special_tokens=False)
        closing = self.encode(after[0].lstrip(" "), add_special_tokens=False)
        return opening, frozenset(closing[:1]) & self._special_ids

    def skipped_tokens(
        self, *, eos_token_ids: Iterable[int], kept_ids: frozenset[int] = frozenset()
    ) -> Mapping[int, str]:
        """Return the texts of the tokens that a decoder skips, by id."""
        return {
            i: self._names[i] for i in self._skipped(eos_token_ids, kept_ids) & self._names.keys()
        }

    def _skipped(self, eos_token_ids: Iterable[int], kept_ids: frozenset[int]) -> frozenset[int]:
        return (self._special_ids | frozenset(eos_token_ids)) - kept_ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self._tokenizer.decode(
            list(token_ids),
            skip_special_tokens=skip_special_tokens,
            clean_up_tokenization_spaces=False,
        )

    def decoder(
        self,
        *,
        skip_special_tokens: bool = True,
        eos_token_ids: Iterable[int] = (),
        kept_ids: frozenset[int] = frozenset(),
    ) -> Decoder:
        """Return a decoder for one completion; it skips special tokens and eos_token_ids.

        kept_ids stay in the text although they are special.
        """
        skipped: Set[int] = frozenset()
        if skip_special_tokens:
            skipped = self._skipped(eos_token_ids, kept_ids)
        if self._is_byte_level:
            return ByteDecoder(self._bytes_without(frozenset(skipped)))
        skips_in_tokenizer = skip_special_tokens and not kept_ids
        return WindowDecoder(
            decode=lambda ids: self.decode(ids, skip_special_tokens=skips_in_tokenizer),
            skips=lambda token_id: token_id in skipped or token_id >= self._num_ids,
        )


def _ending(extras: ChatExtras) -> dict[str, bool]:
    """Return the template's options for the end of the prompt."""
    if extras.continue_final_message:
        return {"continue_final_message": True}
    return {"add_generation_prompt": True} if extras.add_generation_prompt else {}
