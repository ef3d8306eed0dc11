"""Masks tokens by a grammar: the engine's TokenMask over an llguidance matcher."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer

from server.structured_output.llguidance_grammar import error_summary

Bitmask = npt.NDArray[np.uint32]


class GrammarMask:
    """Follows the committed tokens; advances along drafts and rolls back.

        committed  t t t t | d d d      ahead: draft tokens that the matcher has consumed
                           0 1 2 3      rows: computed masks after ahead[:k]

    The end of text is allowed where the grammar may end or continue; where it can only end, the
    output has already ended. With ignore_eos the end of text is masked as long as the grammar can
    continue.

    Copies of a matcher share the library's limits. Once other outputs have used them up, this
    mask replays its tokens on a new matcher. If that fails too, only the end of text is allowed,
    and `error` has the reason.
    """

    def __init__(
        self,
        *,
        template: LLMatcher,
        new_matcher: Callable[[], LLMatcher],
        tokenizer: LLTokenizer,
        eos_ids: Sequence[int],
        ignore_eos: bool,
    ) -> None:
        """template: a matcher in its initial state, which is copied. new_matcher makes one that
        shares no limits with it; called at most once."""
        self._template = template
        self._new_matcher: Callable[[], LLMatcher] | None = new_matcher
        self._matcher = template.deep_copy()
        self._width = -(-tokenizer.vocab_size // 32)
        self._ends = _bits([*eos_ids, *tokenizer.eos_tokens], self._width)
        self._eos = _bits(eos_ids, self._width)
        self._allows_eos = not ignore_eos
        self._committed: list[int] = []
        self._ahead: list[int] = []
        self._rows: dict[int, Bitmask] = {}
        self._error: str | None = None

    @property
    def error(self) -> str | None:
        """Why the grammar cannot be followed any further; None while it can be."""
        return self._error

    def fill(self, draft_ids: Sequence[int], words: Bitmask) -> None:
        words[:] = self._row(draft_ids)[: len(words)]

    def commit(self, token_id: int) -> bool:
        self._committed.append(token_id)
        if self._ahead and self._ahead[0] == token_id:
            del self._ahead[0]
            self._rows = {k - 1: row for k, row in self._rows.items() if k > 0}
        else:
            self._rollback_to(0)
            self._matcher.consume_token(token_id)
            self._rows = {}
        if self._matcher.is_error():
            why = self._matcher.get_error()
            if not self._restart() or self._matcher.is_error():
                self._error = error_summary(why)
                return True
        is_complete = self._is_complete()
        if is_complete and self._error is None and not self._matcher.is_accepting():
            self._error = "no token of this model can continue it"
        return is_complete or self._error is not None

    @property
    def can_begin(self) -> bool:
        """Whether the grammar allows a first token other than the end of text."""
        return bool((self._row(()) & ~self._ends).any()) and self._error is None

    def _is_complete(self) -> bool:
        """Whether only the end of text may follow the committed tokens."""
        if self._ahead:
            return False  # a draft token was allowed here
        if self._matcher.is_stopped():
            return True
        # The next step reuses this row.
        return not (self._row(()) & ~self._ends).any()

    def _row(self, draft_ids: Sequence[int]) -> Bitmask:
        """Return the mask after a draft; all zero where the draft completes the grammar."""
        if self._error is not None:
            return self._only_eos()
        num_shared = _num_shared(self._ahead, draft_ids)
        if num_shared == len(draft_ids) and num_shared in self._rows:
            return self._rows[num_shared]
        self._rollback_to(num_shared)
        for token_id in draft_ids[num_shared:]:
            self._matcher.consume_token(token_id)
            self._ahead.append(token_id)
        row = self._compute_row()
        if self._matcher.is_error():
            why = self._matcher.get_error()
            if self._restart():
                return self._row(draft_ids)
            if not draft_ids:
                self._error = error_summary(why)
            return self._only_eos()
        self._rows[len(draft_ids)] = row
        return row

    def _compute_row(self) -> Bitmask:
        row = np.zeros(self._width, dtype=np.uint32)
        if self._matcher.is_stopped():
            return row
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        others = row & ~self._ends
        return others | (row & self._eos) if self._allows_eos or not others.any() else others

    def _rollback_to(self, num_ahead: int) -> None:
        if num_ahead < len(self._ahead):
            self._matcher.rollback(len(self._ahead) - num_ahead)
            del self._ahead[num_ahead:]
            self._rows = {k: row for k, row in self._rows.items() if k <= num_ahead}

    def _restart(self) -> bool:
        """Replay the committed tokens on a matcher without an error.

        Returns whether the matcher is the new one with unshared limits, so a retry can succeed.
        """
        is_first = self._new_matcher is not None
        if self._new_matcher is not None:
            self._template, self._new_matcher = self._new_matcher(), None
        self._matcher = self._template.deep_copy()
        self._matcher.consume_tokens(self._committed)
        self._ahead, self._rows = [], {}
        return is_first

    def _only_eos(self) -> Bitmask:
        """Return a mask of the end of text; of all tokens for a model without one."""
        return self._eos if self._eos.any() else np.full_like(self._eos, 0xFFFF_FFFF)


def _num_shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _bits(token_ids: Sequence[int], width: int) -> Bitmask:
    words = np.zeros(width, dtype=np.uint32)
    for token_id in token_ids:
        words[token_id // 32] |= np.uint32(1 << token_id % 32)
    return words
