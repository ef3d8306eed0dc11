"""Row masks along the draft's own chain, so that it guesses what may be said."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from engine.api import TokenMask
from engine.runner.transfer import upload
from engine.sampling.token_masks import EVERYTHING, is_allowed, mask_of, no_words, to_device, unpack
from engine.scheduler.plan import ScheduledSequence


@dataclass(slots=True)
class _Chain:
    """What one sequence's draft has said, and what it might."""

    mask: TokenMask
    said: list[int]
    is_lost: bool = False  # it has said what it may not


class DraftTokenMasks:
    """A draft.ChainMask over the drafting shares that bring a mask."""

    def __init__(self, *, chains: Sequence[_Chain], rows: Int[Tensor, " M"], vocab_size: int):
        self._chains = chains
        self._rows = rows
        self._vocab_size = vocab_size
        self._words = no_words(len(chains), vocab_size)

    @classmethod
    def of(
        cls, drafting: Sequence[ScheduledSequence], *, vocab_size: int, device: torch.device
    ) -> Self | None:
        """None where no share of a draft pass brings a mask."""
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
        """Slot 0 begins anew."""
        for chain, token_id, words in zip(
            self._chains, previous_ids.tolist(), self._words, strict=True
        ):
            if k == 0:
                chain.said, chain.is_lost = [], False
            elif not chain.is_lost and is_allowed(token_id, words):
                chain.said.append(token_id)
            else:
                chain.is_lost = True
            words[:] = EVERYTHING if chain.is_lost else 0
            if not chain.is_lost:
                assert len(chain.said) == k, (k, chain.said)
                chain.mask.fill(chain.said, words)

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
