"""Applies repetition, presence and frequency penalties, counted row by row along a draft."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from engine.api import Request
from engine.arrays import IntArray
from engine.runner.transfer import place, upload
from engine.sampling.logit_rows import LogitRows


@dataclass(frozen=True, slots=True)
class Penalties:
    """Penalties of the S windows, P rows, of the requests that have one.

    Only tokens of a row's prefix can change: its history, and the draft before the row. So each
    window has a short list of candidates, the U distinct tokens of its history and then its K
    draft tokens, and no tensor is as long as the vocabulary. A candidate may occur twice in the
    list, or not yet in the prefix of this row; its value is the same each time.
    """

    num_rows: int
    rows: Int[Tensor, " P"]
    owners: Int[Tensor, " P"]  # which of the S windows a row belongs to
    num_drafts: Int[Tensor, " P"]  # draft tokens before the row
    sampling: Int[Tensor, " S"]  # the windows' indices among the sampling sequences
    token_ids: Int[Tensor, "S U"]  # shorter histories repeat their first token
    output_counts: Int[Tensor, "S U"]
    repetition: Float[Tensor, " S"]
    presence: Float[Tensor, " S"]
    frequency: Float[Tensor, " S"]

    @classmethod
    def of(cls, rows: LogitRows, *, device: torch.device) -> Self | None:
        windows = rows.where(_has_penalty)
        if not windows:
            return None
        sequences = [window.scheduled.seq for window in windows]
        histories = [seq.history.follow(seq.token_ids) for seq in sequences]
        width = max(len(ids) for ids, _ in histories)
        at, owners, num_drafts, sampling, token_ids, counts = upload(
            [
                np.concatenate([w.rows for w in windows]),
                np.repeat(np.arange(len(windows)), [w.num_rows for w in windows]),
                np.concatenate([np.arange(w.num_rows) for w in windows]),
                np.array([w.index for w in windows]),
                np.stack([_widened(ids, width) for ids, _ in histories]),
                np.stack([_widened(counts, width) for _, counts in histories]),
            ],
            device,
        )
        params = [seq.request.params for seq in sequences]

        def column(values: list[float]) -> Tensor:
            return place(np.array(values, dtype=np.float32), device)

        return cls(
            num_rows=len(at),
            rows=at,
            owners=owners,
            num_drafts=num_drafts,
            sampling=sampling,
            token_ids=token_ids,
            output_counts=counts,
            repetition=column([p.repetition_penalty for p in params]),
            presence=column([p.presence_penalty for p in params]),
            frequency=column([p.frequency_penalty for p in params]),
        )

    def apply(self, scores: Float[Tensor, "R V"], draft_ids: Int[Tensor, "Bs K"]) -> None:
        drafts = draft_ids[self.sampling]
        counts, is_known = count_candidates(self.token_ids, self.output_counts, drafts)
        candidates = torch.cat([self.token_ids, drafts], dim=1)[self.owners]  # (P, C)
        in_output = counts[self.owners, self.num_drafts]
        at = self.rows[:, None], candidates
        scores[at] = penalised(
            scores[at],
            is_repeated=is_known[self.owners] | (in_output > 0),
            output_counts=in_output,
            repetition=self.repetition[self.owners],
            presence=self.presence[self.owners],
            frequency=self.frequency[self.owners],
        )


def count_candidates(
    token_ids: Int[Tensor, "S U"],
    output_counts: Int[Tensor, "S U"],
    draft_ids: Int[Tensor, "S K"],
) -> tuple[Int[Tensor, "S K+1 U+K"], Bool[Tensor, "S U+K"]]:
    """Count each candidate in the output before row k, and whether it is in the history.

    Candidates are token_ids, which have output_counts committed occurrences, and draft_ids.
    """
    is_same = draft_ids[:, :, None] == token_ids[:, None, :]  # (S, K, U)
    drafted = (is_same * output_counts[:, None, :]).amax(dim=2)
    committed = torch.cat([output_counts, drafted], dim=1)
    is_known = torch.cat([torch.ones_like(token_ids, dtype=torch.bool), is_same.any(dim=2)], dim=1)
    candidates = torch.cat([token_ids, draft_ids], dim=1)
    drafted_so_far = (draft_ids[:, :, None] == candidates[:, None, :]).cumsum(dim=1)
    before = torch.nn.functional.pad(drafted_so_far, (0, 0, 1, 0))  # (S, K+1, U+K)
    return committed[:, None, :] + before, is_known


def penalised(
    scores: Float[Tensor, "P C"],
    *,
    is_repeated: Bool[Tensor, "P C"],
    output_counts: Int[Tensor, "P C"],
    repetition: Float[Tensor, " P"],
    presence: Float[Tensor, " P"],
    frequency: Float[Tensor, " P"],
) -> Float[Tensor, "P C"]:
    """Apply CTRL's penalty (Keskar et al. 2019), as transformers does, and the OpenAI API's two."""
    factor = repetition[:, None]
    repeated = torch.where(scores < 0, scores * factor, scores / factor)
    scores = torch.where(is_repeated, repeated, scores)
    scores = scores - frequency[:, None] * output_counts
    return scores - presence[:, None] * (output_counts > 0)


def _has_penalty(request: Request) -> bool:
    p = request.params
    return p.repetition_penalty != 1 or p.presence_penalty != 0 or p.frequency_penalty != 0


def _widened(values: IntArray, width: int) -> IntArray:
    return np.concatenate([values, np.repeat(values[:1], width - len(values))])
