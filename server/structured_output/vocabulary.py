"""The model's tokens as bytes, as the grammar library wants them."""

from collections.abc import Callable, Sequence

from llguidance import LLTokenizer, TokenizerWrapper

Encode = Callable[[str], list[int]]


def grammar_tokenizer(
    tokens: Sequence[bytes | None], eos_ids: Sequence[int], encode: Encode
) -> LLTokenizer:
    """tokens: each id's bytes, None for what is no text (special, or no token at all).

    The library needs an end of text. A model without one is given an id behind all others, which
    nothing can say. `encode` says how the model's tokenizer writes a text that a grammar leaves no
    choice about; then only that is allowed, because a model reads what it was taught to write.
    """
    no_text = [i for i, token in enumerate(tokens) if not token]
    nobody = len(tokens)
    named = [token or f"<{i}>".encode() for i, token in enumerate(tokens)] + [b"<nobody>"]
    ends = sorted(eos_ids) or [nobody]
    wrapper = TokenizerWrapper(_Tokens(named, [*no_text, nobody], ends[0], encode))
    return LLTokenizer(wrapper, eos_token=ends, slices=LLTokenizer.json_slices())


class _Tokens:
    """What the library takes from us."""

    bos_token_id = None

    def __init__(
        self, tokens: Sequence[bytes], special_ids: Sequence[int], eos_id: int, encode: Encode
    ) -> None:
        self.tokens = tokens
        self.special_token_ids = special_ids
        self.eos_token_id = eos_id
        self._encode = encode
        special = set(special_ids)
        self._ids = {token: i for i, token in enumerate(tokens) if i not in special}
        self._longest = max(map(len, self._ids))

    def __call__(self, text: str) -> list[int]:
        """Tokens whose bytes are exactly the text's; fewer where there are none for the rest."""
        assert isinstance(text, str), "the library's trial with bytes"
        ids = self._encode(text)
        if b"".join(self.tokens[i] for i in ids) == text.encode():
            return ids
        return self._longest_first(text.encode())

    def _longest_first(self, text: bytes) -> list[int]:
        """For tokenizers that add a space before a text, or know no token for a part of it."""
        ids: list[int] = []
        at = 0
        while at < len(text):
            for length in range(min(self._longest, len(text) - at), 0, -1):
                if text[at : at + length] in self._ids:
                    ids.append(self._ids[text[at : at + length]])
                    at += length
                    break
            else:
                break
        return ids
