"""Builds llguidance's tokenizer from the bytes of the model's tokens."""

from collections.abc import Callable, Sequence

from llguidance import LLTokenizer, TokenizerWrapper

Encode = Callable[[str], list[int]]


def grammar_tokenizer(
    tokens: Sequence[bytes | None], eos_ids: Sequence[int], encode: Encode
) -> LLTokenizer:
    """Build the tokenizer. tokens: the bytes of each id, None for special and unused ids.

    The library requires an end-of-text id. A model without one gets an extra id after all others,
    which is never generated. Where a grammar forces a text, only the tokens that `encode` returns
    for it are allowed: the model was trained on those.
    """
    no_text = [i for i, token in enumerate(tokens) if not token]
    unused = len(tokens)
    named = [token or f"<{i}>".encode() for i, token in enumerate(tokens)] + [b"<unused>"]
    ends = sorted(eos_ids) or [unused]
    wrapper = TokenizerWrapper(_Tokens(named, [*no_text, unused], ends[0], encode))
    return LLTokenizer(wrapper, eos_token=ends, slices=LLTokenizer.json_slices())


class _Tokens:
    """The interface that llguidance's TokenizerWrapper expects."""

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
        """Return tokens with exactly the text's bytes; fewer where no token matches the rest."""
        assert isinstance(text, str), f"llguidance passed {type(text).__name__}"
        ids = self._encode(text)
        if b"".join(self.tokens[i] for i in ids) == text.encode():
            return ids
        return self._longest_first(text.encode())

    def _longest_first(self, text: bytes) -> list[int]:
        """Tokenize greedily, for tokenizers that add a space or lack a token for a part."""
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
