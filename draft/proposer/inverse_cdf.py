"""Samples tokens by inverse CDF from uniforms that the caller provides."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

_PART = 512  # probabilities that are summed before any is compared with the uniform


def inverse_cdf(probs: Float[Tensor, "*B V"], uniforms: Float[Tensor, "*B"]) -> Int[Tensor, "*B"]:
    """Return the first token whose cumulative probability exceeds the uniform in [0, 1).

    Sums in float64 and normalises by the total. A running sum over a vocabulary is slow on any
    device, so parts of it are summed first, and only the part of the token is accumulated.

    Never returns a token of probability 0: if rounding lifts the uniform to the total, the last
    token with a probability is returned. The result is a valid token id even if the probabilities
    are NaN.
    """
    size = probs.shape[-1]
    flat = probs.reshape(-1, size)
    num_whole = size // _PART
    whole = flat[:, : num_whole * _PART].view(len(flat), num_whole, _PART)
    sums = torch.cat(
        [
            whole.sum(dim=-1, dtype=torch.float64),
            flat[:, num_whole * _PART :].sum(dim=-1, keepdim=True, dtype=torch.float64),
        ],
        dim=1,
    )
    cumulative = sums.cumsum(dim=-1)
    threshold = uniforms.reshape(-1, 1).to(torch.float64) * cumulative[:, -1:]
    part = _first_above(cumulative, threshold).clamp(max=num_whole)
    before = torch.where(part > 0, cumulative.gather(1, (part - 1).clamp(min=0)), 0.0)
    at = part * _PART + torch.arange(min(_PART, size), device=probs.device)
    inside = flat.gather(1, at.clamp(max=size - 1)).to(torch.float64).masked_fill(at >= size, 0.0)
    token = part * _PART + _first_above(inside.cumsum(dim=-1), threshold - before)
    return token.clamp(max=size - 1).view(uniforms.shape)


def _first_above(
    cumulative: Float[Tensor, "B N"], threshold: Float[Tensor, "B 1"]
) -> Int[Tensor, "B 1"]:
    """Return the first entry above the threshold, or else the first that reaches the total."""
    total = cumulative[:, -1:].contiguous()
    drawn = torch.searchsorted(cumulative, threshold, right=True)
    return torch.minimum(drawn, torch.searchsorted(cumulative, total))
