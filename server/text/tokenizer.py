"""Encodes text to token ids, and creates decoders."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from server.text.chat_template import NO_EXTRAS, ChatExtras, ChatTemplate, TemplateTokenizer
from server.text.content_tokens import ContentTokens
from server.text.detokenizer import ByteDecoder, Decoder, WindowDecoder
from server.text.token_bytes import ByteLevelTokens, TokenTexts, TokenTokenizer

_NO_LIMIT = 10**30  # as in transformers


class Tokenizer(TokenTokenizer, TemplateTokenizer, Protocol):
    """The part of a Hugging Face tokenizer that this module uses."""

    all_special_ids: list[int]
    added_tokens_decoder: Mapping[int, Any]


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
        self._template = ChatTemplate(
            tokenizer=tokenizer,
            content_tokens=ContentTokens(
                backend=getattr(tokenizer, "backend_tokenizer", None),
                special_ids={name: i for i, name in self._names.items()},
            ),
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
        return self._template.text

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
        return bool(self._template.text)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        extras: ChatExtras = NO_EXTRAS,
        *,
        special_tokens_in_content: bool = False,
    ) -> list[int]:
        """Encode a chat up to the start of the assistant's turn. Raises ChatTemplateError.

        special_tokens_in_content: texts of special tokens in a message become special tokens.
        """
        return self._template.encode(
            messages, extras, special_tokens_in_content=special_tokens_in_content
        )

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

        Raises ChatTemplateError.
        """
        opening, closing = self._template.around_user_message()
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
