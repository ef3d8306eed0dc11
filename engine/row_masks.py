"""Rules over token ids, such as a grammar's, applied to every row along a draft.

A request brings a `RowMask`, which says in bits what may follow. It is asked in the middle of a
step, once the draft is known: the one place where a step with masks waits for the device earlier
than at its end. Whoever adds a grammar makes a RowMask and hands it over with the request; a
token that the mask rules out has p = 0, so a draft that breaks the rule is rejected there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int, Int32
from torch import Tensor

from engine.sampling_rows import SamplingRows, Window
from engine.upload import upload

_BITS = 32


@dataclass(frozen=True, slots=True)
class RowMasks:
    """The windows whose requests bring a mask."""

    windows: tuple[Window, ...]
    rows: Int[Tensor, " P"]
    sampling: Int[Tensor, " S"]  # the windows' places among the sampling shares
    vocab_size: int

    @classmethod
    def of(cls, rows: SamplingRows, *, vocab_size: int, device: torch.device) -> Self | None:
        windows = rows.where(lambda request: request.row_mask)
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
        words = torch.from_numpy(self._ask(drafts).view(np.int32)).to(scores.device)
        allowed = unpack(words, vocab_size=scores.shape[1])
        scores[self.rows] = scores[self.rows].masked_fill(~allowed, float("-inf"))

    def _ask(self, drafts: Sequence[Sequence[int]]) -> npt.NDArray[np.uint32]:
        """Every row's bits: [P, ceil(V / 32)]."""
        words = np.zeros((self.num_rows, -(-self.vocab_size // _BITS)), dtype=np.uint32)
        first = 0
        for window, draft in zip(self.windows, drafts, strict=True):
            mask = window.share.seq.request.row_mask
            assert mask is not None, window.share.seq.request.request_id
            own = words[first : first + window.num_rows]
            mask.fill(draft[: window.share.num_drafts], own)
            first += window.num_rows
        return words


def unpack(words: Int32[Tensor, "P W"], *, vocab_size: int) -> Bool[Tensor, "P V"]:
    """Bit t % 32 of word t // 32, for every token t."""
    shifts = torch.arange(_BITS, dtype=torch.int32, device=words.device)
    bits = (words[:, :, None] >> shifts) & 1
    return bits.flatten(1)[:, :vocab_size].bool()
