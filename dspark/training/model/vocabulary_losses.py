"""The two losses over a whole vocabulary, with gradients in closed form.

Autograd would keep and walk a handful of [slots, vocabulary] tensors. Here a few rows are worked
on at a time, small enough for a CPU's cache, and nothing of that size is kept but the input.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draft.network.draft_vocabulary import NO_DRAFT_ID

_CACHED_NUMBERS = 1 << 17  # of a float32 tensor that is worked on at once, on CPU


class VocabularyLosses(torch.autograd.Function):
    """Cross-entropy and L1 distance of q = softmax(logits), row by row.

    With z the logits, y the word and s = sign(q - p):

        cross-entropy = -log q[y]            d/dz = q - onehot(y)
        l1            = sum |q - p| + u      d/dz = q * (s - sum(s * q))

    where u = 1 - sum(p) is what the target gives to tokens that the draft has no word for. A word
    that is NO_DRAFT_ID has no cross-entropy. At q = p the sign is 0.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Float[Tensor, "S Vd"],
        words: Int[Tensor, " S"],
        p: Float[Tensor, "S Vd"],
    ) -> tuple[Float[Tensor, " S"], Float[Tensor, " S"]]:
        """Both in float32; p is float32 and has no gradient."""
        log_sums = torch.empty(len(logits), device=logits.device)
        l1 = torch.empty_like(log_sums)
        for rows in _spans(logits):
            z = logits[rows].to(torch.float32, copy=True)
            log_sums[rows] = torch.logsumexp(z, dim=-1)
            q = z.sub_(log_sums[rows, None]).exp_()
            unsayable = (1 - p[rows].sum(dim=-1)).clamp(min=0)
            l1[rows] = q.sub_(p[rows]).abs_().sum(dim=-1) + unsayable
        is_sayable = words != NO_DRAFT_ID
        said = logits.gather(1, words.clamp(min=0)[:, None]).squeeze(1).float()
        ctx.save_for_backward(logits, words, p, log_sums)
        return torch.where(is_sayable, log_sums - said, 0), l1

    @staticmethod
    def backward(
        ctx: Any, cross_entropy_gradient: Tensor, l1_gradient: Tensor
    ) -> tuple[Float[Tensor, "S Vd"], None, None]:
        logits, words, p, log_sums = ctx.saved_tensors
        is_sayable = words != NO_DRAFT_ID
        of_word = torch.where(is_sayable, cross_entropy_gradient, 0)[:, None]  # (S, 1)
        of_l1 = l1_gradient[:, None]
        gradient = torch.empty_like(logits)
        for rows in _spans(logits):
            z = logits[rows].to(torch.float32, copy=True)
            q = z.sub_(log_sums[rows, None]).exp_()
            sign = (q - p[rows]).sign_()
            mean = (sign * q).sum(dim=-1, keepdim=True)
            scale = sign.sub_(mean).mul_(of_l1[rows]).add_(of_word[rows])
            scale.mul_(q).scatter_add_(1, words[rows, None].clamp(min=0), -of_word[rows])
            gradient[rows] = scale
        return gradient, None, None


def _spans(logits: Float[Tensor, "S Vd"]) -> Iterator[slice]:
    """Rows that are worked on together: all of them on a device, which has no such cache."""
    num_rows, width = logits.shape
    at_once = max(1, _CACHED_NUMBERS // width) if logits.device.type == "cpu" else num_rows
    for start in range(0, num_rows, at_once):
        yield slice(start, start + at_once)
