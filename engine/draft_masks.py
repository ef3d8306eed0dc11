"""Row masks along the draft's own chain, so that it guesses what may be said."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from engine.api import RowMask
from engine.plan import SequenceStep
from engine.row_masks import EVERYTHING, is_allowed, mask_of, no_words, to_device, unpack
from engine.upload import upload


@dataclass(slots=True)
class _Chain:
    """What one sequence's draft has said, and what it might."""

    mask: RowMask
    said: list[int]
    is_lost: bool = False  # it has said what it may not


class DraftMasks:
    """A draft.ChainMask over the drafting shares that bring a mask."""

    def __init__(self, *, chains: Sequence[_Chain], rows: Int[Tensor, " M"], vocab_size: int):
        self._chains = chains
        self._rows = rows
        self._vocab_size = vocab_size
        self._words = no_words(len(chains), vocab_size)

    @classmethod
    def of(
        cls, drafting: Sequence[SequenceStep], *, vocab_size: int, device: torch.device
    ) -> Self | None:
        """None where no share of a draft pass brings a mask."""
        masked = [b for b, share in enumerate(drafting) if share.seq.request.row_mask is not None]
        if not masked:
            return None
        (rows,) = upload([np.array(masked, dtype=np.int64)], device)
        chains = [_Chain(mask_of(drafting[b]), []) for b in masked]
        return cls(chains=chains, rows=rows, vocab_size=vocab_size)

    @property
    def rows(self) -> Int[Tensor, " M"]:
        return self._rows

    def allowed(self, k: int, previous_ids: Int[Tensor, " M"]) -> Bool[Tensor, "M V"]:
        if k > 0:
            self._go_on(previous_ids.tolist())
        for chain, words in zip(self._chains, self._words, strict=True):
            assert chain.is_lost or len(chain.said) == k, (k, chain.said)
            words[:] = EVERYTHING if chain.is_lost else 0
            if not chain.is_lost:
                chain.mask.fill(chain.said, words)
        return unpack(to_device(self._words, previous_ids.device), vocab_size=self._vocab_size)

    def _go_on(self, previous_ids: Sequence[int]) -> None:
        for chain, token_id, words in zip(self._chains, previous_ids, self._words, strict=True):
            chain.is_lost = chain.is_lost or not is_allowed(token_id, words)
            if not chain.is_lost:
                chain.said.append(token_id)
