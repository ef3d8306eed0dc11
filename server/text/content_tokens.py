"""Encodes chats so that only the template, not the content of a message, has special tokens."""

import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from threading import Lock
from typing import Any

from tokenizers import AddedToken, Tokenizer

Render = Callable[["ChatInput"], str]
ChatInput = Mapping[str, Any]  # messages, tools and other arguments of a chat template


class ContentTokens:
    """Finds special tokens in the content of chats, and encodes them there as plain text.

    The assistant's messages are exempt: they may repeat special tokens of an earlier output.
    """

    def __init__(self, *, backend: Tokenizer | None, special_ids: Mapping[str, int]) -> None:
        """backend: the fast tokenizer; None where the model has none. special_ids: by text."""
        self._backend = backend
        self._special_ids = special_ids
        self._pattern = re.compile(_trie_pattern(list(special_ids))) if special_ids else None
        self._lock = Lock()

    @property
    def can_encode(self) -> bool:
        """Whether the tokenizer can encode the text of a special token as text."""
        return self._backend is not None

    def are_in(self, chat: ChatInput) -> bool:
        """Whether content of this chat contains the text of a special token."""
        pattern = self._pattern
        return pattern is not None and any(pattern.search(text) for text in _texts(_content(chat)))

    def encode(self, chat: ChatInput, render: Render) -> list[int]:
        """Return the ids of the rendered chat, with the special tokens of its content as text.

        Requires `can_encode`.
        """
        assert self._pattern is not None, "a chat without special tokens"
        mark = _unused_character(chat)
        text = self._marked_text(chat, render, mark, self._pattern)
        with self._lock:  # the first call builds the tokenizer
            plain, aliases, ids_of_aliases = self._plain, self._aliases, self._ids_of_aliases
        aliased = re.sub(
            f"{mark}?{self._pattern.pattern}", lambda match: aliases.get(match[0], match[0]), text
        )
        ids = plain.encode(aliased.replace(mark, ""), add_special_tokens=False).ids
        return [ids_of_aliases.get(i, i) for i in ids]

    def _marked_text(
        self, chat: ChatInput, render: Render, mark: str, pattern: re.Pattern[str]
    ) -> str:
        """Return the rendered chat with a mark before each special token of its content.

        A template may look at the content. So a chat without marks must render to the same text.
        """
        marked = render(_with_content(chat, lambda text: pattern.sub(rf"{mark}\g<0>", text)))
        plain = render(chat)
        if marked.replace(mark, "") == plain:
            return marked
        after = render(_with_content(chat, lambda text: pattern.sub(rf"\g<0>{mark}", text)))
        if after.replace(mark, "") == plain:
            return re.sub(f"({pattern.pattern}){mark}", rf"{mark}\1", after)
        return marked

    @cached_property
    def _aliases(self) -> Mapping[str, str]:
        """Texts that no client can send, one for each special token."""
        nonce = secrets.token_hex(16)
        return {text: f"\ue000{nonce}-{i}\ue000" for text, i in self._special_ids.items()}

    @cached_property
    def _plain(self) -> Tokenizer:
        """A tokenizer that knows special tokens by their aliases only."""
        assert self._backend is not None
        plain = Tokenizer.from_str(self._backend.to_str())
        plain.no_truncation()
        plain.no_padding()
        plain.encode_special_tokens = True
        known = self._backend.get_added_tokens_decoder()
        for text, alias in self._aliases.items():
            token = known.get(self._special_ids[text], AddedToken(text))
            new = AddedToken(alias, normalized=False, lstrip=token.lstrip, rstrip=token.rstrip)
            plain.add_tokens([new])
        return plain

    @cached_property
    def _ids_of_aliases(self) -> Mapping[int, int]:
        """The ids of special tokens, by the ids of their aliases."""
        ids = self._plain.get_vocab()
        return {ids[self._aliases[text]]: i for text, i in self._special_ids.items()}


def _content(chat: ChatInput) -> list[Any]:
    messages: Sequence[Mapping[str, Any]] = chat["messages"]
    return [
        *(message for message in messages if message["role"] != "assistant"),
        {name: value for name, value in chat.items() if name != "messages"},
    ]


def _with_content(chat: ChatInput, change: Callable[[str], str]) -> ChatInput:
    messages = [
        message if message["role"] == "assistant" else _mapped(message, change)
        for message in chat["messages"]
    ]
    return {
        **_mapped({k: v for k, v in chat.items() if k != "messages"}, change),
        "messages": messages,
    }


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.items():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with every text, names included, changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_mapped(name, change): _mapped(item, change) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(item, change) for item in value]
    return value


def _unused_character(chat: ChatInput) -> str:
    """Return a character of Unicode's private use that the chat does not contain."""
    used = set().union(*_texts([chat["messages"], *_content(chat)]))
    return next(char for char in map(chr, range(0xE001, 0xF8FF)) if char not in used)


def _trie_pattern(texts: Sequence[str]) -> str:
    """Return a regex that matches the longest of the texts in time linear in its length."""
    by_first: dict[str, list[str]] = {}
    for text in texts:
        by_first.setdefault(text[:1], []).append(text[1:])
    is_end = by_first.pop("", None) is not None
    parts = []
    for first, rests in by_first.items():
        only = rests[0] if len(set(rests)) == 1 else None
        parts.append(
            re.escape(first) + (re.escape(only) if only is not None else _trie_pattern(rests))
        )
    pattern = f"(?:{'|'.join(parts)})" if parts else ""
    return f"{pattern}?" if is_end and parts else pattern
