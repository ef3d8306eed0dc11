"""Rules over token ids, such as a grammar's, applied to every row along a draft.

A request brings a `TokenMask`, which says in bits what may follow. It is asked in the middle of a
step, once the draft is known: there a step with masks waits for the device earlier than at its
end. Whoever adds a grammar makes a TokenMask and hands it over with the request; a token that the
mask rules out has p = 0, so a draft that breaks the rule is rejected there. Drafts keep to the
rule themselves (engine.draft_masks), and have q = 0 where it says no.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int, Int32
from torch import Tensor

from engine.api import TokenMask
from engine.runner.transfer import upload
from engine.sampling.logit_rows import SamplingRows, Window
from engine.scheduler.plan import ScheduledSequence

EVERYTHING = np.uint32(0xFFFF_FFFF)
_BITS = 32


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """The windows whose requests bring a mask."""

    windows: tuple[Window, ...]
    rows: Int[Tensor, " P"]
    sampling: Int[Tensor, " S"]  # the windows' places among the sampling shares
    vocab_size: int

    @classmethod
    def of(cls, rows: SamplingRows, *, vocab_size: int, device: torch.device) -> Self | None:
        windows = rows.where(lambda request: request.token_mask)
        if not windows:
            return None
        at = np.concatenate([window.rows for window in windows])
        indices = np.array([window.index for window in windows])
        rows_on_device, sampling = upload([at, indices], device)
        return cls(tuple(windows), rows_on_device, sampling, vocab_size)

    @property
    def num_rows(self) -> int:
        return len(self.rows)

    def apply(self, scores: Float[Tensor, "R V"], draft_ids: Int[Tensor, "Bs K"]) -> None:
        drafts = draft_ids[self.sampling].tolist()
        words = to_device(self._ask(drafts), scores.device)
        allowed = unpack(words, vocab_size=scores.shape[1])
        scores[self.rows] = scores[self.rows].masked_fill(~allowed, float("-inf"))

    def _ask(self, drafts: Sequence[Sequence[int]]) -> npt.NDArray[np.uint32]:
        """Every row's bits: [P, ceil(V / 32)]."""
        words = no_words(self.num_rows, self.vocab_size)
        first = 0
        for window, draft in zip(self.windows, drafts, strict=True):
            own = words[first : first + window.num_rows]
            masks_along(mask_of(window.scheduled), draft[: window.scheduled.num_drafts], own)
            first += window.num_rows
        return words


def mask_of(scheduled: ScheduledSequence) -> TokenMask:
    mask = scheduled.seq.request.token_mask
    assert mask is not None, f"{scheduled.seq.request.request_id} brings no mask"
    return mask


def masks_along(mask: TokenMask, draft_ids: Sequence[int], words: npt.NDArray[np.uint32]) -> None:
    """Row k of words [len(draft_ids) + 1, ceil(V / 32)]: what may follow draft_ids[:k].

    Behind a draft token that is ruled out, or that ends the answer, everything may: no such row
    is ever read.
    """
    for k, row in enumerate(words):
        if k == 0 or is_allowed(draft_ids[k - 1], words[k - 1]):
            mask.fill(draft_ids[:k], row)
        if not row.any():
            assert k > 0, "a row mask allows no token"
            words[k:] = EVERYTHING
            return


def is_allowed(token_id: int, words: npt.NDArray[np.uint32]) -> bool:
    return bool(words[token_id // _BITS] >> np.uint32(token_id % _BITS) & 1)


def no_words(num_rows: int, vocab_size: int) -> npt.NDArray[np.uint32]:
    """Rows of bits in which nothing is allowed: [num_rows, ceil(vocab_size / 32)]."""
    return np.zeros((num_rows, -(-vocab_size // _BITS)), dtype=np.uint32)


def to_device(words: npt.NDArray[np.uint32], device: torch.device) -> Int32[Tensor, "P W"]:
    return torch.from_numpy(words.view(np.int32)).to(device)


def unpack(words: Int32[Tensor, "P W"], *, vocab_size: int) -> Bool[Tensor, "P V"]:
    """Bit t % 32 of word t // 32, for every token t."""
    shifts = torch.arange(_BITS, dtype=torch.int32, device=words.device)
    bits = (words[:, :, None] >> shifts) & 1
    return bits.flatten(1)[:, :vocab_size].bool()
