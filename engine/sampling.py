"""From logits to the distribution that a request asked for."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from engine.api import SamplingParams
from engine.upload import place


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Sampling parameters of R sequences that draw (temperature > 0), as tensors.

    Fields that no sequence uses are None, so that their filter costs nothing.
    """

    temperatures: Float[Tensor, " R"]
    top_ks: Int[Tensor, " R"] | None
    top_ps: Float[Tensor, " R"] | None
    min_ps: Float[Tensor, " R"] | None

    @classmethod
    def of(cls, params: list[SamplingParams], *, vocab_size: int, device: torch.device) -> Self:
        def column(values: list[float]) -> Tensor:
            return place(np.array(values, dtype=np.float32), device)

        top_ks = [p.top_k if p.top_k > 0 else vocab_size for p in params]
        return cls(
            temperatures=column([p.temperature for p in params]),
            top_ks=place(np.array(top_ks, dtype=np.int64), device)
            if any(k < vocab_size for k in top_ks)
            else None,
            top_ps=column([p.top_p for p in params]) if any(p.top_p < 1 for p in params) else None,
            min_ps=column([p.min_p for p in params]) if any(p.min_p > 0 for p in params) else None,
        )

    def part(self, rows: slice) -> "SamplingBatch":
        """Those of some of the sequences."""
        return SamplingBatch(
            self.temperatures[rows],
            None if self.top_ks is None else self.top_ks[rows],
            None if self.top_ps is None else self.top_ps[rows],
            None if self.min_ps is None else self.min_ps[rows],
        )


def is_greedy(params: SamplingParams) -> bool:
    """Temperatures below 1e-5 and top_k 1 are greedy (dspark.md section 5, point 2)."""
    return params.temperature < 1e-5 or params.top_k == 1


def target_probs(logits: Float[Tensor, "R W V"], params: SamplingBatch) -> Float[Tensor, "R W V"]:
    """The processed target distribution p, in float32.

    transformers' order: temperature, top_k, top_p, min_p. A filter never removes the most
    likely token.
    """
    scores = logits.float() / params.temperatures[:, None, None]
    if params.top_ks is not None or params.top_ps is not None:
        scores = _keep_top(scores, params.top_ks, params.top_ps)
    probs = torch.softmax(scores, dim=-1)
    if params.min_ps is not None:
        floor = params.min_ps[:, None, None] * probs.amax(dim=-1, keepdim=True)
        probs = torch.where(probs < floor, 0.0, probs)
        probs = probs / probs.sum(dim=-1, keepdim=True)
    return probs


def _keep_top(
    scores: Float[Tensor, "R W V"],
    top_ks: Int[Tensor, " R"] | None,
    top_ps: Float[Tensor, " R"] | None,
) -> Float[Tensor, "R W V"]:
    """Drop what top_k and then top_p leave out, by one sort for both."""
    ordered, order = scores.sort(dim=-1, descending=True, stable=True)
    if top_ks is not None:
        # Ties with the k-th largest score stay, as in transformers.
        kth = ordered.gather(-1, (top_ks - 1)[:, None, None].expand(-1, ordered.shape[1], 1))
        ordered = ordered.masked_fill(ordered < kth, float("-inf"))
    if top_ps is not None:
        probs = torch.softmax(ordered, dim=-1)
        before = probs.cumsum(dim=-1) - probs  # mass of the more likely tokens
        beyond = before >= top_ps[:, None, None]
        beyond[..., 0] = False
        ordered = ordered.masked_fill(beyond, float("-inf"))
    return torch.full_like(scores, float("-inf")).scatter(-1, order, ordered)
