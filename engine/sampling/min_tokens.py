"""Masks stop tokens until min_tokens is reached."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from engine.runner.transfer import upload
from engine.sampling.logit_rows import LogitRows, join_rows


@dataclass(frozen=True, slots=True)
class MinTokens:
    """Sets N single logits, in P rows, to minus infinity.

    Row k decides output token number num_output + k (from 0); it must not be a stop while that
    number is below min_new_tokens. A row in which only stops are allowed stays as it is: its
    grammar has ended, or every token is a stop.
    """

    slices: tuple[slice, ...]  # of the P rows
    num_rows: int  # P
    rows: Int[Tensor, " N"]
    token_ids: Int[Tensor, " N"]
    owners: Int[Tensor, " N"]  # which of the P rows each logit belongs to

    @classmethod
    def of(cls, rows: LogitRows, *, device: torch.device) -> Self | None:
        at, ids, spans = [], [], []
        for window in rows.where(lambda request: request.params.min_new_tokens):
            seq = window.scheduled.seq
            num_short = seq.request.params.min_new_tokens - seq.num_output
            short = window.rows[: max(0, num_short)]
            stops = np.array(sorted(seq.stop_ids), dtype=np.int64)
            if len(short) and len(stops):
                spans.append((window.first, len(short)))
                at.append(np.repeat(short, len(stops)))
                ids.append(np.tile(stops, len(short)))
        if not at:
            return None
        all_rows = np.concatenate(at)
        distinct, owners = np.unique(all_rows, return_inverse=True)
        return cls(
            join_rows(spans),
            len(distinct),
            *upload([all_rows, np.concatenate(ids), owners], device),
        )

    def apply(self, scores: Float[Tensor, "R V"], draft_ids: Int[Tensor, "Bs K"]) -> None:
        before = scores[self.rows, self.token_ids]
        scores[self.rows, self.token_ids] = float("-inf")
        tops = torch.cat([scores[rows].amax(dim=1) for rows in self.slices])  # (P,)
        is_left_empty = tops.isneginf()[self.owners]
        scores[self.rows, self.token_ids] = before.masked_fill(~is_left_empty, float("-inf"))
