"""Applies token masks, such as a grammar's, to every row along a draft.

A request's `TokenMask` sets a bit for each token that may follow. It is called in the middle of a
step, once the draft is known, so a step with masks waits for the device then and not only at its
end. A token that the mask excludes has p = 0, so a draft that breaks the rule is rejected there.
Drafts follow the mask themselves (engine.sampling.draft_token_masks): q = 0 where it excludes.
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
from engine.runner.transfer import place, upload
from engine.sampling.logit_rows import LogitRows, Window, join_rows
from engine.scheduler.plan import ScheduledSequence

EVERYTHING = np.uint32(0xFFFF_FFFF)
_BITS = 32
_PIECE = 16  # rows that are unpacked at a time


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """The S windows, P rows, of the requests that have a mask."""

    windows: tuple[Window, ...]
    sampling: Int[Tensor, " S"]  # the windows' indices among the sampling sequences
    vocab_size: int

    @classmethod
    def of(cls, rows: LogitRows, *, vocab_size: int, device: torch.device) -> Self | None:
        windows = rows.where(lambda request: request.token_mask)
        if not windows:
            return None
        (sampling,) = upload([np.array([window.index for window in windows])], device)
        return cls(tuple(windows), sampling, vocab_size)

    @property
    def num_rows(self) -> int:
        return sum(window.num_rows for window in self.windows)

    def apply(self, scores: Float[Tensor, "R V"], draft_ids: Int[Tensor, "Bs K"]) -> None:
        """Exclude tokens in place, a few rows at a time: unpacked masks are large."""
        excluded = to_device(~self._fill(draft_ids[self.sampling].tolist()), scores.device)
        slices = join_rows((window.first, window.num_rows) for window in self.windows)
        views = [piece for rows in slices for piece in torch.split(scores[rows], _PIECE)]
        words = torch.split(excluded, [len(view) for view in views])
        for view, some in zip(views, words, strict=True):
            view.masked_fill_(unpack(some, vocab_size=scores.shape[1]), float("-inf"))

    def _fill(self, drafts: Sequence[Sequence[int]]) -> npt.NDArray[np.uint32]:
        """Every row's bits: [P, ceil(V / 32)]."""
        words = no_words(self.num_rows, self.vocab_size)
        first = 0
        for window, draft in zip(self.windows, drafts, strict=True):
            own = words[first : first + window.num_rows]
            fill_along(mask_of(window.scheduled), draft[: window.scheduled.num_drafts], own)
            first += window.num_rows
        return words


def mask_of(scheduled: ScheduledSequence) -> TokenMask:
    mask = scheduled.seq.request.token_mask
    assert mask is not None, f"{scheduled.seq.request.request_id} has no mask"
    return mask


def fill_along(mask: TokenMask, draft_ids: Sequence[int], words: npt.NDArray[np.uint32]) -> None:
    """Fill row k of words [len(draft_ids) + 1, ceil(V / 32)]: the tokens after draft_ids[:k].

    After a draft token that is excluded, or that ends the output, every token is allowed: no such
    row is ever read.
    """
    for k, row in enumerate(words):
        if k == 0 or is_allowed(draft_ids[k - 1], words[k - 1]):
            mask.fill(draft_ids[:k], row)
        if not row.any():
            assert k > 0, "a token mask allows no token"
            words[k:] = EVERYTHING
            return


def is_allowed(token_id: int, words: npt.NDArray[np.uint32]) -> bool:
    return bool(words[token_id // _BITS] >> np.uint32(token_id % _BITS) & 1)


def no_words(num_rows: int, vocab_size: int) -> npt.NDArray[np.uint32]:
    """Make rows of bits that allow nothing: [num_rows, ceil(vocab_size / 32)]."""
    return np.zeros((num_rows, -(-vocab_size // _BITS)), dtype=np.uint32)


def to_device(words: npt.NDArray[np.uint32], device: torch.device) -> Int32[Tensor, "P W"]:
    return place(words.view(np.int32), device)


def unpack(words: Int32[Tensor, "P W"], *, vocab_size: int) -> Bool[Tensor, "P V"]:
    """Unpack bit t % 32 of word t // 32, for every token t, through one byte per bit."""
    shifts = torch.arange(8, dtype=torch.uint8, device=words.device)
    bits = words.view(torch.uint8)[:, :, None] >> shifts
    bits &= 1
    return bits.view(torch.bool).flatten(1)[:, :vocab_size]
