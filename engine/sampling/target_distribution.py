"""Computes the target's distribution under temperature, top_k, top_p and min_p."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from engine.api import EngineSamplingParams
from engine.runner.transfer import place

_CANDIDATES = (128, 2048)  # likeliest tokens that top_p sorts before the whole vocabulary


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Sampling parameters of the R sequences that draw at random, as tensors.

    Fields that no sequence uses are None, so that their filter costs nothing.
    """

    temperatures: Float[Tensor, " R"]
    top_ks: Int[Tensor, " R"] | None
    top_ps: Float[Tensor, " R"] | None
    min_ps: Float[Tensor, " R"] | None
    largest_top_k: int = 0  # of the sequences with a top_k

    @classmethod
    def of(
        cls, params: list[EngineSamplingParams], *, vocab_size: int, device: torch.device
    ) -> Self:
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
            largest_top_k=max((k for k in top_ks if k < vocab_size), default=0),
        )

    def part(self, rows: Int[Tensor, " N"]) -> "SamplingBatch":
        """Select the parameters of some of the sequences."""
        return SamplingBatch(
            self.temperatures[rows],
            None if self.top_ks is None else self.top_ks[rows],
            None if self.top_ps is None else self.top_ps[rows],
            None if self.min_ps is None else self.min_ps[rows],
            self.largest_top_k,
        )


def target_probs(logits: Float[Tensor, "R W V"], params: SamplingBatch) -> Float[Tensor, "R W V"]:
    """Compute the processed target distribution p, in float32.

    The order is transformers': temperature, top_k, top_p, min_p. A filter never removes the most
    likely token.
    """
    scores = logits.float() / params.temperatures[:, None, None]
    if params.top_ks is not None:
        scores = _keep_top_k(scores, params.top_ks, params.largest_top_k)
    if params.top_ps is not None:
        scores = _keep_top_p(scores, params.top_ps)
    probs = torch.softmax(scores, dim=-1)
    if params.min_ps is not None:
        floor = params.min_ps[:, None, None] * probs.amax(dim=-1, keepdim=True)
        probs = torch.where(probs < floor, 0.0, probs)
        probs = probs / probs.sum(dim=-1, keepdim=True)
    return probs


def _keep_top_k(
    scores: Float[Tensor, "R W V"], top_ks: Int[Tensor, " R"], largest: int
) -> Float[Tensor, "R W V"]:
    """Drop the scores below the k-th largest; ties with it are kept, as in transformers."""
    best = scores.topk(largest, dim=-1).values
    at = (top_ks.clamp(max=largest) - 1)[:, None, None].expand(-1, scores.shape[1], 1)
    has_top_k = (top_ks < scores.shape[-1])[:, None, None]
    kth = torch.where(has_top_k, best.gather(-1, at), float("-inf"))
    return scores.masked_fill(scores < kth, float("-inf"))


def _keep_top_p(
    scores: Float[Tensor, "R W V"], top_ps: Float[Tensor, " R"]
) -> Float[Tensor, "R W V"]:
    """Keep the likeliest tokens up to the one at which their mass reaches top_p.

    Of equal scores at the edge, those with smaller ids are kept.
    """
    last, num_kept = _last_kept(scores, top_ps[:, None, None])
    above = scores > last
    at_edge = scores == last
    room = num_kept - above.sum(dim=-1, keepdim=True)
    at_edge &= at_edge.cumsum(dim=-1) <= room
    return scores.masked_fill(~(above | at_edge), float("-inf"))


def _last_kept(
    scores: Float[Tensor, "R W V"], top_ps: Float[Tensor, "R 1 1"]
) -> tuple[Float[Tensor, "R W 1"], Int[Tensor, "R W 1"]]:
    """Find the smallest score that top_p keeps, and how many tokens it keeps.

    Sorting a vocabulary is slow on a CPU, and the result is mostly among the first few tokens. So
    only these are sorted, and more of them where their mass is too small. CUDA sorts all at once:
    the check whether the first suffice would wait for the device.
    """
    vocab_size = scores.shape[-1]
    few = () if scores.is_cuda else tuple(n for n in _CANDIDATES if n < vocab_size)
    normaliser = scores.logsumexp(dim=-1, keepdim=True)
    for size in (*few, vocab_size):
        best = scores.topk(size, dim=-1).values
        probs = (best - normaliser).exp()
        before = probs.cumsum(dim=-1) - probs  # mass of the more likely tokens
        if size == vocab_size or bool(((before[..., -1:] >= top_ps) | (top_ps >= 1)).all()):
            break
    num_kept = (before < top_ps).sum(dim=-1, keepdim=True).clamp(min=1)
    last = best.gather(-1, num_kept - 1)
    everything = top_ps >= 1
    return (
        torch.where(everything, float("-inf"), last),
        torch.where(everything, vocab_size, num_kept),
    )
