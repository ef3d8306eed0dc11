"""Text and token ids: encoding, chat templates, and decoding while an answer grows."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from server.text.detokenizer import ByteDecoder, Decoder, WindowDecoder
from server.text.token_bytes import ByteLevelTokens, TokenTexts

_NEW_TURN = {"add_generation_prompt": True}
_KNOWN_MESSAGE = "a message that is known"
_NO_LIMIT = 10**30  # transformers' own way to say so


class ChatTemplateError(ValueError):
    """The model has no chat template, or its template refuses these messages."""


@dataclass(frozen=True, slots=True)
class ChatExtras:
    """What a chat template is given besides the messages."""

    tools: Sequence[Mapping[str, Any]] = ()
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    goes_on: bool = False  # the last message is the assistant's, and the answer goes on with it


NO_EXTRAS = ChatExtras()


class Tokenizer(Protocol):
    """What is used of a Hugging Face tokenizer."""

    chat_template: Any
    all_special_ids: list[int]
    added_tokens_decoder: Mapping[int, Any]

    def get_vocab(self) -> Mapping[str, int]: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(
        self,
        token_ids: list[int],
        *,
        skip_special_tokens: bool,
        clean_up_tokenization_spaces: bool,
    ) -> str: ...

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...


class TextCodec:
    """One model's tokenizer and chat template. Safe to use from several threads."""

    def __init__(self, *, tokenizer: Tokenizer) -> None:
        # A fast tokenizer drops a truncation or padding of its file at the first use, and must
        # not be changed while another thread reads it: so that use is here.
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

    @classmethod
    def load(
        cls,
        folder: Path | str,
        *,
        revision: str | None = None,
        trust_remote_code: bool = False,
        chat_template: str | None = None,
    ) -> "TextCodec":
        """The tokenizer of a model folder (or hub id). Raises OSError or ValueError without one.

        chat_template is a Jinja text that stands in for the model's own.
        """
        from transformers import AutoTokenizer  # heavy: not before there is something to load

        tokenizer = AutoTokenizer.from_pretrained(
            str(folder), revision=revision, trust_remote_code=trust_remote_code
        )
        tokenizer.model_max_length = _NO_LIMIT  # lengths are checked, and told, per request
        if chat_template is not None:
            tokenizer.chat_template = chat_template
        return cls(tokenizer=tokenizer)

    @property
    def chat_template(self) -> str:
        """Its text, of several that a model may have all of them; empty without one."""
        template = self._tokenizer.chat_template or ""
        return template if isinstance(template, str) else str(template)

    def ids_of(self, tokens: Iterable[str]) -> frozenset[int]:
        """Those of these texts that are a token of their own."""
        return frozenset(self._ids[token] for token in tokens if token in self._ids)

    def token_bytes(self, count: int) -> list[bytes | None]:
        """What each of the first `count` ids says; None for special tokens and for no token.

        Reads the whole vocabulary: a second or so for a large one.
        """
        spoken = set(self._ids.values()) - self._special_ids
        return [self.tokens.bytes(i) if i in spoken else None for i in range(count)]

    def special_id(self, token: str) -> int | None:
        """The id of a special token that is written so."""
        token_id = self._ids.get(token)
        return token_id if token_id in self._special_ids else None

    @property
    def has_chat_template(self) -> bool:
        return bool(self._tokenizer.chat_template)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], extras: ChatExtras = NO_EXTRAS
    ) -> list[int]:
        """Messages of a role and a content each, up to where the assistant begins to speak.

        The template writes the special tokens itself, so none are added.
        Raises ChatTemplateError.
        """
        if not self.has_chat_template:
            raise ChatTemplateError("this model has no chat template")
        try:
            text = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=[dict(tool) for tool in extras.tools] or None,
                tokenize=False,
                **({"continue_final_message": True} if extras.goes_on else _NEW_TURN),
                **extras.template_kwargs,
            )
            text.encode()  # arguments may carry half of a surrogate pair, which is no text
        except Exception as error:  # a template is a program, and fails as programs do
            raise ChatTemplateError(f"the chat template refuses these messages: {error}") from error
        return self.encode(text, add_special_tokens=False)

    def user_turn(self) -> tuple[list[int], frozenset[int]]:
        """What stands before a first user message, and the special tokens that may end it.

        Found by rendering a message that is known. Raises ChatTemplateError where the template
        does not show it once and as it is.
        """
        if not self.has_chat_template:
            raise ChatTemplateError("this model has no chat template")
        try:
            text = self._tokenizer.apply_chat_template(
                [{"role": "user", "content": _KNOWN_MESSAGE}], tokenize=False
            )
        except Exception as error:  # a template is a program, and fails as programs do
            raise ChatTemplateError(f"the chat template refuses a user message: {error}") from error
        before, *after = text.split(_KNOWN_MESSAGE)
        if len(after) != 1 or not before:
            raise ChatTemplateError(
                "this chat template does not show where a user begins to speak: a message occurs "
                f"{len(after)} times, after {len(before)} characters; accepted: once, after some"
            )
        # A space before the message is part of the message's first token.
        opening = self.encode(before.rstrip(" "), add_special_tokens=False)
        closing = self.encode(after[0].lstrip(" "), add_special_tokens=False)
        return opening, frozenset(closing[:1]) & self._special_ids

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
        """For one answer. eos_token_ids are left out with the special tokens, marked or not.

        kept_ids are in the text although they are special.
        """
        skipped: Set[int] = frozenset()
        if skip_special_tokens:
            skipped = (self._special_ids | frozenset(eos_token_ids)) - kept_ids
        if self._is_byte_level:
            return ByteDecoder(self._bytes_without(frozenset(skipped)))
        left_to_tokenizer = skip_special_tokens and not kept_ids
        return WindowDecoder(
            decode=lambda ids: self.decode(ids, skip_special_tokens=left_to_tokenizer),
            skips=lambda token_id: token_id in skipped or token_id >= self._num_ids,
        )
