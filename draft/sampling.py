"""Drawing a token from a distribution with a number that somebody else drew."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def inverse_cdf(probs: Float[Tensor, "*B V"], uniforms: Float[Tensor, "*B"]) -> Int[Tensor, "*B"]:
    """The first token whose cumulative probability exceeds the uniform in [0, 1).

    The sum runs in float64, and its own total stands for 1. A token of probability 0 is never
    drawn: should rounding lift the uniform to the total, the last token that added to it wins.
    The id is always one of the vocabulary, even where the probabilities are NaN.
    """
    cumulative = probs.to(torch.float64).cumsum(dim=-1)
    total = cumulative[..., -1:].contiguous()
    threshold = uniforms.to(torch.float64).unsqueeze(-1) * total
    drawn = torch.searchsorted(cumulative, threshold, right=True)
    last = torch.searchsorted(cumulative, total)
    return torch.minimum(drawn, last).squeeze(-1).clamp(max=probs.shape[-1] - 1)
