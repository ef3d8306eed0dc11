"""Computes the target's distribution under temperature, top_k, top_p and min_p.

A filter leaves few tokens of a vocabulary, so only the likeliest are sorted. The result says
whether they were enough: a device cannot check it without a wait, so the caller checks it where it
waits anyway, and computes the few rows again with more of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from engine.api import EngineSamplingParams
from engine.runner.transfer import place


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Sampling parameters of the R sequences that draw at random, as tensors.

    Fields that no sequence uses are None, so that their filter costs nothing.
    """

    temperatures: Float[Tensor, " R"]
    top_ks: Int[Tensor, " R"] | None
    top_ps: Float[Tensor, " R"] | None
    min_ps: Float[Tensor, " R"] | None
    has_filter: bool  # of any sequence

    @classmethod
    def of(
        cls, params: Sequence[EngineSamplingParams], *, vocab_size: int, device: torch.device
    ) -> Self:
        rows = [(p.temperature, top_k_of(p, vocab_size), p.top_p, p.min_p) for p in params]
        packed = place(np.array(rows, dtype=np.float64).T.copy(), device)
        has_top_k = any(top_k < vocab_size for _, top_k, _, _ in rows)
        has_top_p = any(top_p < 1 for _, _, top_p, _ in rows)
        has_min_p = any(min_p > 0 for *_, min_p in rows)
        return cls(
            packed[0].float(),
            packed[1].long() if has_top_k else None,
            packed[2].float() if has_top_p else None,
            packed[3].float() if has_min_p else None,
            has_top_k or has_top_p or has_min_p,
        )


def top_k_of(params: EngineSamplingParams, vocab_size: int) -> int:
    """Return the number of tokens that top_k keeps, ties aside."""
    return min(params.top_k, vocab_size) if params.top_k > 0 else vocab_size


@dataclass(frozen=True, slots=True)
class TokenProbs:
    """Holds distributions over tokens; those without an entry have probability 0."""

    probs: Float[Tensor, "*R C"]  # float32
    ids: Int[Tensor, "*R C"] | None = None  # ascending; None: entry t is token t

    def of(self, token_ids: Int[Tensor, "*R"]) -> Float[Tensor, "*R"]:
        """Return the probability of one token of each row."""
        if self.ids is None:
            return self.probs.gather(-1, token_ids[..., None])[..., 0]
        return self.probs.masked_fill(self.ids != token_ids[..., None], 0.0).sum(dim=-1)

    def without(self, token_ids: Int[Tensor, "*R"]) -> Float[Tensor, "*R C"]:
        """Return probs with 0 for one token of each row; -1: for none."""
        ids = torch.arange(self.probs.shape[-1], device=self.probs.device)
        ids = ids if self.ids is None else self.ids
        return self.probs.masked_fill(ids == token_ids[..., None], 0.0)

    def at(self, *index: Tensor | slice) -> "TokenProbs":
        """Select rows by their leading dimensions."""
        return TokenProbs(self.probs[index], None if self.ids is None else self.ids[index])

    def tokens(self, entries: Int[Tensor, "*R"]) -> Int[Tensor, "*R"]:
        """Return the token of one entry of each row."""
        return entries if self.ids is None else self.ids.gather(-1, entries[..., None])[..., 0]


def target_probs(
    logits: Float[Tensor, "R W V"], params: SamplingBatch, *, size: int
) -> tuple[TokenProbs, Bool[Tensor, "R W"]]:
    """Compute the processed target distribution p, and whether it is exact.

    The order is transformers': temperature, top_k, top_p, min_p. A filter never removes the most
    likely token. top_k keeps ties with its last token; of equal scores at the edge of top_p, those
    with smaller ids are kept.

    With a filter, `size` of the likeliest tokens are entries. p is exact where the filters exclude
    all others, their ties included, and where size is that of the vocabulary.
    """
    scores = logits.float() / params.temperatures[:, None, None]
    if not params.has_filter:
        every = torch.ones(scores.shape[:2], dtype=torch.bool, device=scores.device)
        return TokenProbs(torch.softmax(scores, dim=-1)), every
    vocab_size = scores.shape[-1]
    size = min(size, vocab_size)
    best, found = scores.topk(size, dim=-1)
    smallest = best[..., -1:].clone()  # no token without an entry is likelier
    kept_to = torch.full_like(smallest, float("-inf"))  # the smallest score that filters keep
    normaliser = None
    if params.top_ks is not None:
        places = params.top_ks[:, None, None]
        kth = best.gather(-1, (places.clamp(max=size) - 1).expand(-1, best.shape[1], 1))
        kept_to = torch.where(places < vocab_size, kth, kept_to)
    if params.top_ps is not None:
        normaliser = scores.logsumexp(dim=-1, keepdim=True)
        if params.top_ks is not None:
            kept = best.masked_fill(best < kept_to, float("-inf"))
            normaliser = torch.where(
                places < vocab_size, kept.logsumexp(dim=-1, keepdim=True), normaliser
            )
    ids, order = found.sort(dim=-1)
    by_id = best.gather(-1, order)
    is_kept = by_id >= kept_to
    if params.top_ps is not None and normaliser is not None:
        top_ps = params.top_ps[:, None, None]
        probs = (best.masked_fill(best < kept_to, float("-inf")) - normaliser).exp()
        before = probs.cumsum(dim=-1) - probs  # mass of the more likely tokens
        num_kept = (before < top_ps).sum(dim=-1, keepdim=True).clamp(min=1)
        last = best.gather(-1, num_kept - 1)
        is_limited = top_ps < 1
        room = num_kept - (by_id > last).sum(dim=-1, keepdim=True)
        at_edge = by_id == last
        at_edge &= at_edge.cumsum(dim=-1) <= room
        is_kept &= ~is_limited | (by_id > last) | at_edge
        kept_to = torch.where(is_limited, torch.maximum(kept_to, last), kept_to)
    probs = torch.softmax(by_id.masked_fill(~is_kept, float("-inf")), dim=-1)
    excluded = smallest < kept_to
    if params.min_ps is not None:
        min_ps = params.min_ps[:, None, None]
        probs = probs.masked_fill(probs < min_ps * probs.amax(dim=-1, keepdim=True), 0.0)
        probs = probs / probs.sum(dim=-1, keepdim=True)
        excluded |= (smallest - best[..., :1]).exp() < min_ps
    is_exact = excluded[..., 0] if size < vocab_size else torch.ones_like(excluded[..., 0])
    return TokenProbs(probs, ids), is_exact
