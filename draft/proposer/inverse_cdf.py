"""Samples tokens by inverse CDF from uniforms that the caller provides."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def inverse_cdf(probs: Float[Tensor, "*B V"], uniforms: Float[Tensor, "*B"]) -> Int[Tensor, "*B"]:
    """Return the first token whose cumulative probability exceeds the uniform in [0, 1).

    Sums in float64 and normalises by the total. Never returns a token of probability 0: if
    rounding lifts the uniform to the total, the last token with a probability is returned.
    The result is a valid token id even if the probabilities are NaN.
    """
    cumulative = probs.to(torch.float64).cumsum(dim=-1)
    total = cumulative[..., -1:].contiguous()
    threshold = uniforms.to(torch.float64).unsqueeze(-1) * total
    drawn = torch.searchsorted(cumulative, threshold, right=True)
    last = torch.searchsorted(cumulative, total)
    return torch.minimum(drawn, last).squeeze(-1).clamp(max=probs.shape[-1] - 1)
