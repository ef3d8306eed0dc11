"""Proposes the tokens that followed the longest repeated suffix of a sequence's text.

It is looked up in the sequence's own text and, if other answers are shared, in these.
"""

from dataclasses import dataclass, field

from engine.proposers.shared_answers import SharedAnswers, SharedMatch
from engine.proposers.suffix_index import SuffixIndex
from engine.scheduler.sequence import SequenceState

_MOST_INDEXED = 1 << 14  # last tokens of a text that are indexed when decoding starts
_TOKENS_PER_STEP = 1 << 12  # added to new indexes in one step
_SHARED_PER_STEP = 1 << 9  # added to the index of other answers in one step


@dataclass(slots=True)
class _IndexedText:
    start: int  # position of the first indexed token
    stop: int  # and after the last one
    index: SuffixIndex = field(default_factory=SuffixIndex)
    shared: SharedMatch | None = None
    takes_shared: bool = False  # whether the longer match is that in other answers
    match_len: int = 0  # 0 for too short a match, and while the index is incomplete


class LookupProposer:
    """Keeps a suffix index for each running sequence.

    An index is built when the sequence first decodes, a bounded number of tokens per step, and
    then extended by the committed tokens. The index of a reproducible sequence is built at once:
    the other sequences of a step must not decide when it has a match. For the same reason it uses
    no other answers.
    """

    def __init__(
        self, *, max_tokens: int, min_match: int, shared: SharedAnswers | None = None
    ) -> None:
        """max_tokens: of a proposal. min_match: tokens of a repeated suffix that counts.
        shared: answers of other requests.
        """
        assert max_tokens >= 1 <= min_match, (max_tokens, min_match)
        self.max_tokens = max_tokens
        self.min_match = min_match
        self._texts: dict[int, _IndexedText] = {}  # by arrival
        self._left = _TOKENS_PER_STEP
        self._shared = shared

    def begin_step(self) -> None:
        """Allow the next tokens of indexes that are being built."""
        self._left = _TOKENS_PER_STEP
        if self._shared is not None:
            self._shared.index(_SHARED_PER_STEP)

    def match_len(self, seq: SequenceState) -> int:
        """Index the sequence's new tokens; return the length of its match, 0 for too short a one.

        0 also while the index is incomplete.
        """
        text = self._texts.get(seq.arrival)
        if text is None or text.stop != len(seq.token_ids):
            text = self._extended(seq)
        return text.match_len

    def continuation(self, seq: SequenceState, count: int) -> tuple[int, ...]:
        """Return `count` tokens as they followed the match, fewer where another answer ends."""
        text = self._texts[seq.arrival]
        if text.takes_shared and text.shared is not None:
            return tuple(text.shared.continuation(count))
        return tuple(text.index.continuation(count))

    def forget(self, seq: SequenceState) -> None:
        """Drop the index of a sequence that has ended, and share its answer."""
        self._texts.pop(seq.arrival, None)
        if self._shared is not None:
            self._shared.add(seq)

    def flush(self) -> None:
        """Forget all shared answers."""
        if self._shared is None:
            return
        self._shared.clear()
        for text in self._texts.values():
            text.shared, text.takes_shared = None, False
            text.match_len = self._own_match(text)

    def _extended(self, seq: SequenceState) -> _IndexedText:
        """Index the sequence's new tokens, as many as the step allows."""
        length = len(seq.token_ids)
        text = self._texts.get(seq.arrival)
        if text is None:
            start = max(0, length - _MOST_INDEXED)
            text = self._texts[seq.arrival] = _IndexedText(start, start)
        stop = length
        if length - text.stop > self._left and not seq.is_reproducible:
            stop = text.stop + self._left
        text.index.extend(seq.token_ids[text.stop : stop])
        self._left = max(0, self._left - (stop - text.stop))
        text.stop = stop
        text.match_len = self._own_match(text) if stop == length else 0
        if self._shared is not None and not seq.is_reproducible:
            text.shared = self._shared.match(seq, text.shared)
            text.takes_shared = self._is_better(text.shared, text.match_len)
            if text.shared is not None and text.takes_shared:
                text.match_len = text.shared.length
        return text

    def _own_match(self, text: _IndexedText) -> int:
        length = text.index.match_len
        return length if length >= self.min_match else 0

    def _is_better(self, shared: SharedMatch | None, own_len: int) -> bool:
        if shared is None or shared.length < self.min_match or shared.length <= own_len:
            return False
        return bool(shared.continuation(1))
