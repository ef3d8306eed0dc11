"""Applies token masks along the draft's chain, so that it proposes allowed tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from engine.api import TokenMask
from engine.runner.transfer import upload
from engine.sampling.token_masks import (
    EVERYTHING,
    fill_along,
    is_allowed,
    mask_of,
    no_words,
    to_device,
    unpack,
)
from engine.scheduler.plan import ScheduledSequence, StepPlan


def cut_excluded(plan: StepPlan, *, vocab_size: int) -> StepPlan:
    """Cut lookups before the first token that their sequence's mask excludes.

    Such a token has p = 0, so its row and those after it would be verified for nothing.
    """
    if not any(s.lookup_ids and s.seq.request.token_mask for s in plan.scheduled_seqs):
        return plan
    return StepPlan(
        tuple(
            s.cut(_num_allowed(mask_of(s), s.lookup_ids, vocab_size), "no_proposal")
            if s.lookup_ids and s.seq.request.token_mask
            else s
            for s in plan.scheduled_seqs
        )
    )


def _num_allowed(mask: TokenMask, token_ids: Sequence[int], vocab_size: int) -> int:
    words = no_words(len(token_ids) + 1, vocab_size)
    fill_along(mask, token_ids, words)
    # After an excluded token, and after the end of the output, every token is allowed.
    allowed = [is_allowed(t, row) for t, row in zip(token_ids, words[:-1], strict=True)]
    return allowed.index(False) if False in allowed else len(token_ids)


@dataclass(slots=True)
class _Chain:
    """One sequence's mask, and its draft tokens so far."""

    mask: TokenMask
    draft_ids: list[int]
    is_broken: bool = False  # a draft token is excluded


class DraftTokenMasks:
    """A draft.ChainMask over the drafting sequences that have a mask."""

    def __init__(self, *, chains: Sequence[_Chain], rows: Int[Tensor, " M"], vocab_size: int):
        self._chains = chains
        self._rows = rows
        self._vocab_size = vocab_size
        self._words = no_words(len(chains), vocab_size)

    @classmethod
    def of(
        cls, drafting: Sequence[ScheduledSequence], *, vocab_size: int, device: torch.device
    ) -> Self | None:
        """Build the masks of a draft pass; None where no sequence has one."""
        masked = [
            b
            for b, scheduled in enumerate(drafting)
            if scheduled.seq.request.token_mask is not None
        ]
        if not masked:
            return None
        (rows,) = upload([np.array(masked, dtype=np.int64)], device)
        chains = [_Chain(mask_of(drafting[b]), []) for b in masked]
        return cls(chains=chains, rows=rows, vocab_size=vocab_size)

    @property
    def rows(self) -> Int[Tensor, " M"]:
        return self._rows

    def advance(self, k: int, previous_ids: Int[Tensor, " M"]) -> None:
        """See draft.ChainMask. Slot 0 starts a new chain."""
        for chain, token_id, words in zip(
            self._chains, previous_ids.tolist(), self._words, strict=True
        ):
            if k == 0:
                chain.draft_ids, chain.is_broken = [], False
            elif not chain.is_broken and is_allowed(token_id, words):
                chain.draft_ids.append(token_id)
            else:
                chain.is_broken = True
            words[:] = EVERYTHING if chain.is_broken else 0
            if not chain.is_broken:
                assert len(chain.draft_ids) == k, (k, chain.draft_ids)
                chain.mask.fill(chain.draft_ids, words)

    def allows(self, token_ids: Int[Tensor, " M"]) -> bool:
        pairs = zip(token_ids.tolist(), self._words, strict=True)
        return all(is_allowed(token_id, words) for token_id, words in pairs)

    def few(self, most: int) -> list[list[int]] | None:
        found = []
        for words in self._words:
            if np.bitwise_count(words).sum() > most or not words.any():
                return None
            bits = np.unpackbits(words.view(np.uint8), bitorder="little")
            found.append(np.flatnonzero(bits[: self._vocab_size]).tolist())
        return found

    def allowed(self) -> Bool[Tensor, "M V"]:
        return unpack(to_device(self._words, self._rows.device), vocab_size=self._vocab_size)
