"""An answer's shortest length: until then nothing can be said that would end it."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from engine.runner.transfer import upload
from engine.sampling.logit_rows import SamplingRows


@dataclass(frozen=True, slots=True)
class MinTokens:
    """N single logits that become minus infinity.

    Row k decides output token number num_output + k (from 0); it must not be a stop while that
    is below min_new_tokens. A row that has nothing but stops left, because its grammar has come
    to an end or because every token is a stop, stays as it is.
    """

    num_rows: int
    rows: Int[Tensor, " N"]
    token_ids: Int[Tensor, " N"]

    @classmethod
    def of(cls, rows: SamplingRows, *, device: torch.device) -> Self | None:
        at, ids, num_rows = [], [], 0
        for window in rows.where(lambda request: request.params.min_new_tokens):
            seq = window.scheduled.seq
            num_short = seq.request.params.min_new_tokens - seq.num_output
            short = window.rows[: max(0, num_short)]
            stops = np.array(sorted(seq.stop_ids), dtype=np.int64)
            if len(short) and len(stops):
                num_rows += len(short)
                at.append(np.repeat(short, len(stops)))
                ids.append(np.tile(stops, len(short)))
        if not at:
            return None
        return cls(num_rows, *upload([np.concatenate(at), np.concatenate(ids)], device))

    def apply(self, scores: Float[Tensor, "R V"], draft_ids: Int[Tensor, "Bs K"]) -> None:
        before = scores[self.rows, self.token_ids]
        scores[self.rows, self.token_ids] = float("-inf")
        is_left_empty = scores.amax(dim=1).isneginf()[self.rows]
        scores[self.rows, self.token_ids] = before.masked_fill(~is_left_empty, float("-inf"))
