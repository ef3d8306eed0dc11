"""A grammar along one answer: the engine's TokenMask over a matcher."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer

from server.structured_output.llguidance_grammar import first_words

Words = npt.NDArray[np.uint32]


class GrammarMask:
    """Follows what is committed, and goes ahead along drafts and back.

        committed  t t t t | d d d      ahead: draft tokens that the matcher has taken
                           0 1 2 3      rows: what may follow ahead[:k], where it was asked for

    The end of text is allowed where the grammar may end and something else may follow all the
    same; where nothing may, the answer has ended already. ignore_eos takes the end of text out:
    the answer goes on as long as the grammar does.

    Copies of a matcher share what the library lets them explore. Where the others have used it
    up, this answer goes on with a matcher of its own, as if it had been alone from the beginning.
    A grammar that is too complex even so allows only to end; `error` says so.
    """

    def __init__(
        self,
        *,
        template: LLMatcher,
        afresh: Callable[[], LLMatcher],
        tokenizer: LLTokenizer,
        eos_ids: Sequence[int],
        ignore_eos: bool,
    ) -> None:
        """template: a matcher at its beginning, which is copied; afresh makes one that shares
        nothing, and is asked once at most."""
        self._template = template
        self._afresh: Callable[[], LLMatcher] | None = afresh
        self._matcher = template.deep_copy()
        self._width = -(-tokenizer.vocab_size // 32)
        self._ends = _bits([*eos_ids, *tokenizer.eos_tokens], self._width)
        self._eos = _bits(eos_ids, self._width)
        self._allows_eos = not ignore_eos
        self._committed: list[int] = []
        self._ahead: list[int] = []
        self._rows: dict[int, Words] = {}
        self._error: str | None = None

    @property
    def error(self) -> str | None:
        """Why the grammar cannot be followed any further; None while it can."""
        return self._error

    def fill(self, draft_ids: Sequence[int], words: Words) -> None:
        words[:] = self._row(draft_ids)[: len(words)]

    def commit(self, token_id: int) -> bool:
        self._committed.append(token_id)
        if self._ahead and self._ahead[0] == token_id:
            del self._ahead[0]
            self._rows = {k - 1: row for k, row in self._rows.items() if k > 0}
        else:
            self._return_to(0)
            self._matcher.consume_token(token_id)
            self._rows = {}
        if self._matcher.is_error():
            why = self._matcher.get_error()
            if not self._begin_anew() or self._matcher.is_error():
                self._error = first_words(why)
                return True
        is_over = self._is_over()
        if is_over and self._error is None and not self._matcher.is_accepting():
            self._error = "it cannot be gone on with in this model's tokens"
        return is_over or self._error is not None

    @property
    def can_begin(self) -> bool:
        """Whether any token but the end of text may come first."""
        return bool((self._row(()) & ~self._ends).any()) and self._error is None

    def _is_over(self) -> bool:
        """Whether nothing but the end of text may follow what is committed."""
        if self._ahead:
            return False  # something has followed
        if self._matcher.is_stopped():
            return True
        # Computed ahead of the next step, which finds it; elsewhere more than the end may follow.
        return not (self._row(()) & ~self._ends).any()

    def _row(self, draft_ids: Sequence[int]) -> Words:
        """What may follow; nothing where the draft has ended the answer."""
        if self._error is not None:
            return self._only_ends()
        num_shared = _num_shared(self._ahead, draft_ids)
        if num_shared == len(draft_ids) and num_shared in self._rows:
            return self._rows[num_shared]
        self._return_to(num_shared)
        for token_id in draft_ids[num_shared:]:
            self._matcher.consume_token(token_id)
            self._ahead.append(token_id)
        row = self._computed()
        if self._matcher.is_error():
            why = self._matcher.get_error()
            if self._begin_anew():
                return self._row(draft_ids)
            if not draft_ids:
                self._error = first_words(why)
            return self._only_ends()
        self._rows[len(draft_ids)] = row
        return row

    def _computed(self) -> Words:
        row = np.zeros(self._width, dtype=np.uint32)
        if self._matcher.is_stopped():
            return row
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        others = row & ~self._ends
        return others | (row & self._eos) if self._allows_eos or not others.any() else others

    def _return_to(self, num_ahead: int) -> None:
        if num_ahead < len(self._ahead):
            self._matcher.rollback(len(self._ahead) - num_ahead)
            del self._ahead[num_ahead:]
            self._rows = {k: row for k, row in self._rows.items() if k <= num_ahead}

    def _begin_anew(self) -> bool:
        """Behind what is committed, with a matcher that has seen no error.

        Whether that is the first one that shares nothing with other answers, so that what failed
        may be tried again.
        """
        is_first = self._afresh is not None
        if self._afresh is not None:
            self._template, self._afresh = self._afresh(), None
        self._matcher = self._template.deep_copy()
        self._matcher.consume_tokens(self._committed)
        self._ahead, self._rows = [], {}
        return is_first

    def _only_ends(self) -> Words:
        """Ends of text; anything, for a model that has none: the next token is the last."""
        return self._eos if self._eos.any() else np.full_like(self._eos, 0xFFFF_FFFF)


def _num_shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Leading tokens that two texts have in common."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _bits(token_ids: Sequence[int], width: int) -> Words:
    words = np.zeros(width, dtype=np.uint32)
    for token_id in token_ids:
        words[token_id // 32] |= np.uint32(1 << token_id % 32)
    return words
