"""Log probabilities as each API tells them."""

from collections.abc import Mapping, Sequence

from engine import TokenLogprob
from server.text.token_bytes import TokenTexts

_FLOOR = -9999.0  # JSON has no minus infinity


class LogprobForms:
    """Three APIs' ways to tell the same entries; an entry of None is a token that follows nothing.

    Every token has an entry, also those that an answer's text leaves out.
    """

    def __init__(self, *, text: TokenTexts) -> None:
        self._text = text

    def native(
        self, entries: Sequence[tuple[int, TokenLogprob | None]], *, with_text: bool
    ) -> list[list[object]]:
        """SGLang's: [log probability, id, text or null] for each token."""
        return [
            [_value(entry.logprob) if entry else None, token_id, self._maybe(token_id, with_text)]
            for token_id, entry in entries
        ]

    def native_top(
        self, entries: Sequence[tuple[int, TokenLogprob | None]], *, with_text: bool
    ) -> list[list[list[object]] | None]:
        """The likeliest tokens of each place in the same form; null where nothing came before."""
        return [
            [[_value(v), token, self._maybe(token, with_text)] for token, v in entry.top]
            if entry is not None
            else None
            for _, entry in entries
        ]

    def chat(self, entries: Sequence[TokenLogprob]) -> Mapping[str, object]:
        return {
            "content": [
                {
                    **self._said(entry.token_id, entry.logprob),
                    "top_logprobs": [self._said(token, v) for token, v in entry.top],
                }
                for entry in entries
            ],
            "refusal": None,
        }

    def completion(
        self, entries: Sequence[tuple[int, TokenLogprob | None]], *, offset: int
    ) -> Mapping[str, object]:
        """offset: characters of the tokens told before these."""
        texts = [self._text.text(token_id) for token_id, _ in entries]
        offsets = []
        for text in texts:
            offsets.append(offset)
            offset += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [_value(e.logprob) if e else None for _, e in entries],
            "top_logprobs": [self._top(e) for _, e in entries],
            "text_offset": offsets,
        }

    def length(self, token_ids: Sequence[int]) -> int:
        """Characters of the tokens, each by itself."""
        return sum(len(self._text.text(token_id)) for token_id in token_ids)

    def _top(self, entry: TokenLogprob | None) -> Mapping[str, float] | None:
        """The likeliest tokens by their text, and the one that was said as well.

        Of tokens with the same text the likeliest stays.
        """
        if entry is None:
            return None
        said = (entry.token_id, entry.logprob)
        told: dict[str, float] = {}
        for token_id, value in (*entry.top, said):
            text = self._text.text(token_id)
            told[text] = max(_value(value), told.get(text, _FLOOR))
        return told

    def _said(self, token_id: int, logprob: float) -> Mapping[str, object]:
        return {
            "token": self._text.text(token_id),
            "logprob": _value(logprob),
            "bytes": list(self._text.bytes(token_id)),
        }

    def _maybe(self, token_id: int, with_text: bool) -> str | None:
        return self._text.text(token_id) if with_text else None


def _value(logprob: float) -> float:
    return max(logprob, _FLOOR)
