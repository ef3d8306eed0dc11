"""Converts single tokens to text and bytes."""

from collections.abc import Callable, Mapping, Set
from functools import cache, lru_cache
from typing import Protocol

_REPLACEMENT = "\ufffd"
_NUM_SAMPLED = 1000  # tokens


class TokenTokenizer(Protocol):
    """The part of a Hugging Face tokenizer that this module uses."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def get_vocab(self) -> Mapping[str, int]: ...

    def decode(
        self,
        token_ids: list[int],
        *,
        skip_special_tokens: bool,
        clean_up_tokenization_spaces: bool,
    ) -> str: ...


class TokenTexts:
    """Converts single tokens to text and bytes.

    Decodes each token after another one, because some tokenizers drop a leading space.
    """

    def __init__(self, *, tokenizer: TokenTokenizer) -> None:
        self._tokenizer = tokenizer
        self._before = tokenizer.encode("a", add_special_tokens=False)[-1:]
        self._before_text = self._decode(self._before)
        self._names: Callable[[], Mapping[int, str]] = cache(
            lambda: {token_id: name for name, token_id in tokenizer.get_vocab().items()}
        )
        self.text = lru_cache(maxsize=65536)(self._text)

    def _text(self, token_id: int) -> str:
        """Return the token's text; U+FFFD where it is not a whole character."""
        return self._decode([*self._before, token_id])[len(self._before_text) :]

    def are_byte_level(self) -> bool:
        """Whether the vocabulary is byte-level: by its decoder class, checked on a sample."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if type(getattr(backend, "decoder", None)).__name__ != "ByteLevel":
            return False
        ids = sorted(self._names())
        sample = ids[:: max(1, len(ids) // _NUM_SAMPLED)]
        return self._decode(sample) == b"".join(map(self.byte_level, sample)).decode(
            errors="replace"
        )

    def byte_level(self, token_id: int) -> bytes:
        """Return a token's bytes in a byte-level vocabulary; empty for an unused id."""
        name = self._names().get(token_id, "")
        spelled = _spelled_bytes(name)
        return spelled if spelled is not None else name.encode()  # an added token is text

    def bytes(self, token_id: int) -> bytes:
        """Return the token's bytes, also of a partial character."""
        text = self.text(token_id)
        if _REPLACEMENT not in text:
            return text.encode()
        name = self._names().get(token_id, "")
        if name.startswith("<0x") and name.endswith(">") and len(name) == 6:
            return bytes([int(name[3:5], 16)])
        spelled = _spelled_bytes(name)
        return spelled if spelled is not None else text.encode()

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(
            token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )


class ByteLevelTokens(dict[int, bytes]):
    """Maps ids to bytes in a byte-level vocabulary; fills itself on access."""

    def __init__(self, texts: TokenTexts, *, skipped: Set[int]) -> None:
        """skipped: ids with empty bytes."""
        super().__init__()
        self._texts = texts
        self._skipped = skipped

    def __missing__(self, token_id: int) -> bytes:
        data = b"" if token_id in self._skipped else self._texts.byte_level(token_id)
        self[token_id] = data
        return data


def _spelled_bytes(name: str) -> bytes | None:
    """Return the bytes of a byte-level name, one per letter; None for any other name."""
    byte_of = _bytes_by_letter()
    if name and all(letter in byte_of for letter in name):
        return bytes(byte_of[letter] for letter in name)
    return None


@cache
def _bytes_by_letter() -> Mapping[str, int]:
    """Return the byte of each letter in byte-level BPE (GPT-2, Radford et al. 2019).

    Bytes that are printable in Latin-1 are themselves; the others are letters from U+0100 on.
    """
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in own]
    letters = {chr(byte): byte for byte in own}
    return letters | {chr(0x100 + i): byte for i, byte in enumerate(rest)}
