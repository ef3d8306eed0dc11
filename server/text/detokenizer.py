"""Turning tokens into text while an answer grows."""

import codecs
from collections.abc import Callable, Mapping
from typing import Protocol

_REPLACEMENT = "\ufffd"  # what a decoder says for bytes that are no character (yet)
_LONG_TAIL = 32  # undecided tokens after which a decoder looks for a place to break


class Decoder(Protocol):
    """Turns one answer's tokens into text, one token at a time, never half a character.

    The text depends on the tokens alone, not on how a caller groups them.
    """

    def push(self, token_id: int) -> str:
        """The text that is certain now and was not before; often "" or more than one token's."""
        ...

    def flush(self) -> str:
        """What is left at the end, an unfinished character as its replacement."""
        ...


class ByteDecoder:
    """For byte-level tokens, whose bytes are the same wherever they are said."""

    def __init__(self, bytes_by_id: Mapping[int, bytes]) -> None:
        """bytes_by_id: of every id, nothing of what is skipped."""
        self._bytes_by_id = bytes_by_id
        self._unfinished = b""  # the beginning of a character

    def push(self, token_id: int) -> str:
        data = self._unfinished + self._bytes_by_id[token_id]
        text, num_read = codecs.utf_8_decode(data, "replace", False)
        self._unfinished = data[num_read:]
        return text

    def flush(self) -> str:
        data, self._unfinished = self._unfinished, b""
        return data.decode(errors="replace")


class WindowDecoder:
    """For any tokenizer. What a token adds may depend on the tokens before it, so a window is
    decoded anew each time:

        window   t t t | t t          said: tokens whose text is out
                 said    pending      pending: their text ends in an unfinished character
    """

    def __init__(self, *, decode: Callable[[list[int]], str], skips: Callable[[int], bool]) -> None:
        self._decode = decode
        self._skips = skips
        self._window: list[int] = []
        self._num_said = 0  # leading tokens of the window
        self._said = ""  # their text

    def push(self, token_id: int) -> str:
        """The text that is certain now and was not before; often "" or more than one token's."""
        if self._skips(token_id):
            return ""
        self._window.append(token_id)
        text = self._decode(self._window)
        if text.endswith(_REPLACEMENT):
            is_long = len(self._window) - self._num_said > _LONG_TAIL
            return self._break_off(text) if is_long else ""
        return self._say(text) if len(text) > len(self._said) else ""

    def flush(self) -> str:
        """What is left at the end, an unfinished character as its replacement."""
        if len(self._window) == self._num_said:
            return ""
        return self._say(self._decode(self._window))

    def _say(self, text: str) -> str:
        new = text[len(self._said) :]
        self._window = self._window[self._num_said :]
        self._num_said = len(self._window)
        self._said = self._decode(self._window)
        return new

    def _break_off(self, text: str) -> str:
        """Say what no later token can change: up to a place where no character is cut.

        Without it a model that babbles broken bytes would say nothing until its end, and cost
        a longer decode with every token.
        """
        for cut in range(len(self._window) - 1, self._num_said, -1):
            head = self._decode(self._window[:cut])
            if head + self._decode(self._window[cut:]) == text:
                new = head[len(self._said) :]
                self._window, self._num_said, self._said = self._window[cut:], 0, ""
                return new
        return ""
