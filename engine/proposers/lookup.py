"""Proposes the tokens that followed the longest repeated suffix of a sequence's own text."""

from engine.proposers.suffix_index import Match, SuffixIndex
from engine.scheduler.sequence import SequenceState

_MOST_INDEXED = 1 << 14  # last tokens of a text that are indexed when decoding starts
_TOKENS_PER_STEP = 1 << 12  # added to new indexes in one step
_NO_MATCH = Match(0, 0)


class LookupProposer:
    """Keeps a suffix index for each running sequence.

    An index is built when the sequence first decodes, a bounded number of tokens per step, and
    then extended by the committed tokens. The index of a reproducible sequence is built at once:
    the other sequences of a step must not decide when it has a match.
    """

    def __init__(self, *, max_tokens: int, min_match: int) -> None:
        """max_tokens: of a proposal. min_match: tokens of a repeated suffix that counts."""
        assert max_tokens >= 1 <= min_match, (max_tokens, min_match)
        self.max_tokens = max_tokens
        self.min_match = min_match
        self._indexes: dict[int, tuple[int, SuffixIndex]] = {}  # by arrival: first position, index
        self._left = _TOKENS_PER_STEP

    def begin_step(self) -> None:
        """Allow the next tokens of indexes that are being built."""
        self._left = _TOKENS_PER_STEP

    def match_len(self, seq: SequenceState) -> int:
        """Index the sequence's new tokens; return the length of its match, 0 for too short a one.

        0 also while the index is incomplete.
        """
        length = self._match(seq).length
        return length if length >= self.min_match else 0

    def continuation(self, seq: SequenceState, count: int) -> tuple[int, ...]:
        """Return `count` tokens as they followed the match."""
        return tuple(self._indexes[seq.arrival][1].continuation(count))

    def forget(self, seq: SequenceState) -> None:
        self._indexes.pop(seq.arrival, None)

    def _match(self, seq: SequenceState) -> Match:
        length = len(seq.token_ids)
        found = self._indexes.get(seq.arrival)
        if found is None:
            found = self._indexes[seq.arrival] = max(0, length - _MOST_INDEXED), SuffixIndex()
        first, index = found
        at = first + len(index)
        if at < length:
            stop = length
            if length - at > self._left and not seq.is_reproducible:
                stop = at + self._left
            index.extend(seq.token_ids[at:stop])
            self._left = max(0, self._left - (stop - at))
            if stop < length:
                return _NO_MATCH
        return index.match
