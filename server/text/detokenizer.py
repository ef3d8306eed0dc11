"""Decodes tokens to text incrementally."""

import codecs
from collections.abc import Callable, Mapping
from typing import Protocol

_REPLACEMENT = "\ufffd"  # decoded from an incomplete or invalid character
_LONG_TAIL = 32  # pending tokens after which WindowDecoder emits partial text


class Decoder(Protocol):
    """Decodes the tokens of one completion one at a time, in whole characters.

    The text depends on the tokens only, not on how a caller groups them.
    """

    def push(self, token_id: int) -> str:
        """Return the text that this token makes certain; "" or the text of several tokens."""
        ...

    def flush(self) -> str:
        """Return the remaining text; an incomplete character becomes U+FFFD."""
        ...


class ByteDecoder:
    """Decodes byte-level tokens, whose bytes do not depend on their context."""

    def __init__(self, bytes_by_id: Mapping[int, bytes]) -> None:
        """bytes_by_id: the bytes of every id; empty for skipped ids."""
        self._bytes_by_id = bytes_by_id
        self._unfinished = b""  # leading bytes of an incomplete character

    def push(self, token_id: int) -> str:
        data = self._unfinished + self._bytes_by_id[token_id]
        text, num_read = codecs.utf_8_decode(data, "replace", False)
        self._unfinished = data[num_read:]
        return text

    def flush(self) -> str:
        data, self._unfinished = self._unfinished, b""
        return data.decode(errors="replace")


class WindowDecoder:
    """Decodes tokens of any tokenizer, whose text may depend on the tokens before them.

    Decodes a window of tokens at each push:

        window   t t t   | t t        emitted: tokens whose text has been returned
                 emitted   pending    pending: their text ends in an incomplete character
    """

    def __init__(self, *, decode: Callable[[list[int]], str], skips: Callable[[int], bool]) -> None:
        self._decode = decode
        self._skips = skips
        self._window: list[int] = []
        self._num_emitted = 0  # leading tokens of the window
        self._emitted = ""  # their text

    def push(self, token_id: int) -> str:
        """Return the text that this token makes certain; "" or the text of several tokens."""
        if self._skips(token_id):
            return ""
        self._window.append(token_id)
        text = self._decode(self._window)
        if text.endswith(_REPLACEMENT):
            is_long = len(self._window) - self._num_emitted > _LONG_TAIL
            return self._emit_partial(text) if is_long else ""
        return self._emit(text) if len(text) > len(self._emitted) else ""

    def flush(self) -> str:
        """Return the remaining text; an incomplete character becomes U+FFFD."""
        if len(self._window) == self._num_emitted:
            return ""
        return self._emit(self._decode(self._window))

    def _emit(self, text: str) -> str:
        new = text[len(self._emitted) :]
        self._window = self._window[self._num_emitted :]
        self._num_emitted = len(self._window)
        self._emitted = self._decode(self._window)
        return new

    def _emit_partial(self, text: str) -> str:
        """Emit the text up to a token boundary that splits no character.

        Without it, a model that generates invalid bytes would emit nothing, and each decode
        would take longer.
        """
        for cut in range(len(self._window) - 1, self._num_emitted, -1):
            head = self._decode(self._window[:cut])
            if head + self._decode(self._window[cut:]) == text:
                new = head[len(self._emitted) :]
                self._window, self._num_emitted, self._emitted = self._window[cut:], 0, ""
                return new
        return ""
