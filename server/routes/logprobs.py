"""Serializes log probabilities in the form of each API."""

from collections.abc import Mapping, Sequence

from engine import TokenLogprob
from server.text.token_bytes import TokenTexts

_FLOOR = -9999.0  # JSON has no minus infinity


class LogprobSerializer:
    """Serializes one entry per token, also for tokens that the text leaves out.

    An entry of None belongs to the first prompt token, which has no log probability.
    """

    def __init__(self, *, text: TokenTexts) -> None:
        self._text = text

    def native(
        self, entries: Sequence[tuple[int, TokenLogprob | None]], *, with_text: bool
    ) -> list[list[object]]:
        """Return SGLang's form: [log probability, id, text or null] for each token."""
        return [
            [
                _value(entry.logprob) if entry else None,
                token_id,
                self._text_or_none(token_id, with_text),
            ]
            for token_id, entry in entries
        ]

    def native_top(
        self, entries: Sequence[tuple[int, TokenLogprob | None]], *, with_text: bool
    ) -> list[list[list[object]] | None]:
        """Return the likeliest tokens of each position in the same form; null for entry None."""
        return [self._native_list(e.top, with_text) if e else None for _, e in entries]

    def native_requested(
        self, entries: Sequence[tuple[int, TokenLogprob | None]], *, with_text: bool
    ) -> list[list[list[object]] | None]:
        """Return the requested token ids of each position in the same form."""
        return [self._native_list(e.requested, with_text) if e else None for _, e in entries]

    def _native_list(
        self, values: Sequence[tuple[int, float]], with_text: bool
    ) -> list[list[object]]:
        return [[_value(v), token, self._text_or_none(token, with_text)] for token, v in values]

    def prompt(
        self, entries: Sequence[TokenLogprob], *, num_top: int
    ) -> list[dict[str, Mapping[str, object]] | None]:
        """Return vLLM's form: for each position the likeliest tokens and its own, by token id.

        The first position has none.
        """
        found: list[dict[str, Mapping[str, object]] | None] = [None]
        for entry in entries:
            ranked = [(t, v, rank) for rank, (t, v) in enumerate(entry.top[:num_top], start=1)]
            own = (entry.token_id, entry.logprob, entry.rank)
            found.append(
                {
                    str(token_id): {
                        "logprob": _value(value),
                        "rank": rank,
                        "decoded_token": self._text.text(token_id),
                    }
                    for token_id, value, rank in (own, *ranked)
                }
            )
        return found

    def chat(self, entries: Sequence[TokenLogprob]) -> Mapping[str, object]:
        """Return OpenAI's form for chats."""
        return {
            "content": [
                {
                    **self._chat_entry(entry.token_id, entry.logprob),
                    "top_logprobs": [self._chat_entry(token, v) for token, v in entry.top],
                }
                for entry in entries
            ],
            "refusal": None,
        }

    def completion(
        self, entries: Sequence[tuple[int, TokenLogprob | None]], *, offsets: Sequence[int]
    ) -> Mapping[str, object]:
        """Return OpenAI's form for completions. offsets: where each token's text begins."""
        return {
            "tokens": [self._text.text(token_id) for token_id, _ in entries],
            "token_logprobs": [_value(e.logprob) if e else None for _, e in entries],
            "top_logprobs": [self._top(e) for _, e in entries],
            "text_offset": list(offsets),
        }

    def _top(self, entry: TokenLogprob | None) -> Mapping[str, float] | None:
        """Return the likeliest tokens and the sampled one by text.

        Of tokens with the same text the likeliest counts.
        """
        if entry is None:
            return None
        sampled = (entry.token_id, entry.logprob)
        top: dict[str, float] = {}
        for token_id, value in (*entry.top, sampled):
            text = self._text.text(token_id)
            top[text] = max(_value(value), top.get(text, _FLOOR))
        return top

    def _chat_entry(self, token_id: int, logprob: float) -> Mapping[str, object]:
        return {
            "token": self._text.text(token_id),
            "logprob": _value(logprob),
            "bytes": list(self._text.bytes(token_id)),
        }

    def _text_or_none(self, token_id: int, with_text: bool) -> str | None:
        return self._text.text(token_id) if with_text else None


def _value(logprob: float) -> float:
    return max(logprob, _FLOOR)
