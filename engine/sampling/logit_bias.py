"""Adds a request's biases to the logits of single tokens."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from engine.runner.transfer import place, upload
from engine.sampling.logit_rows import LogitRows


@dataclass(frozen=True, slots=True)
class LogitBias:
    """N single logits, over all rows with a bias, and the value that is added to each."""

    num_rows: int
    rows: Int[Tensor, " N"]
    token_ids: Int[Tensor, " N"]
    values: Float[Tensor, " N"]

    @classmethod
    def of(cls, rows: LogitRows, *, device: torch.device) -> Self | None:
        windows = rows.where(lambda request: request.params.logit_bias)
        if not windows:
            return None
        at, ids, values = [], [], []
        for window in windows:
            bias = window.scheduled.seq.request.params.logit_bias
            at.append(np.repeat(window.rows, len(bias)))
            ids.append(np.tile([token_id for token_id, _ in bias], window.num_rows))
            values.append(np.tile([value for _, value in bias], window.num_rows))
        where, token_ids = upload([np.concatenate(at), np.concatenate(ids)], device)
        return cls(
            num_rows=sum(window.num_rows for window in windows),
            rows=where,
            token_ids=token_ids,
            values=place(np.concatenate(values).astype(np.float32), device),
        )

    def apply(self, scores: Float[Tensor, "R V"], draft_ids: Int[Tensor, "Bs K"]) -> None:
        scores[self.rows, self.token_ids] += self.values
