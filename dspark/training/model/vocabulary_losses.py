"""Computes both losses over the vocabulary, with gradients in closed form.

Autograd would store several [slots, vocabulary] tensors. This processes a few rows at a time that
fit in a CPU's cache, and stores only the input.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draft.network.draft_vocabulary import NO_DRAFT_ID

_CACHED_NUMBERS = 1 << 17  # float32 values that are processed together on a CPU


class VocabularyLosses(torch.autograd.Function):
    """Cross-entropy and L1 distance of q = softmax(logits), row by row.

    With z the logits, y the label and s = sign(q - p):

        cross-entropy = -log q[y]            d/dz = q - onehot(y)
        l1            = sum |q - p| + u      d/dz = q * (s - sum(s * q))

    where u = 1 - sum(p) is the target's mass on tokens outside the draft's vocabulary. A label
    NO_DRAFT_ID has no cross-entropy. At q = p the sign is 0.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Float[Tensor, "S Vd"],
        labels: Int[Tensor, " S"],
        p: Float[Tensor, "S Vd"],
    ) -> tuple[Float[Tensor, " S"], Float[Tensor, " S"]]:
        """Return both losses in float32; p is float32 and has no gradient."""
        log_sums = torch.empty(len(logits), device=logits.device)
        l1 = torch.empty_like(log_sums)
        for rows in _spans(logits):
            z = logits[rows].to(torch.float32, copy=True)
            log_sums[rows] = torch.logsumexp(z, dim=-1)
            q = z.sub_(log_sums[rows, None]).exp_()
            outside = (1 - p[rows].sum(dim=-1)).clamp(min=0)
            l1[rows] = q.sub_(p[rows]).abs_().sum(dim=-1) + outside
        has_draft_id = labels != NO_DRAFT_ID
        label_logits = logits.gather(1, labels.clamp(min=0)[:, None]).squeeze(1).float()
        ctx.save_for_backward(logits, labels, p, log_sums)
        return torch.where(has_draft_id, log_sums - label_logits, 0), l1

    @staticmethod
    def backward(
        ctx: Any, cross_entropy_gradient: Tensor, l1_gradient: Tensor
    ) -> tuple[Float[Tensor, "S Vd"], None, None]:
        logits, labels, p, log_sums = ctx.saved_tensors
        has_draft_id = labels != NO_DRAFT_ID
        of_label = torch.where(has_draft_id, cross_entropy_gradient, 0)[:, None]  # (S, 1)
        of_l1 = l1_gradient[:, None]
        gradient = torch.empty_like(logits)
        for rows in _spans(logits):
            z = logits[rows].to(torch.float32, copy=True)
            q = z.sub_(log_sums[rows, None]).exp_()
            sign = (q - p[rows]).sign_()
            mean = (sign * q).sum(dim=-1, keepdim=True)
            scale = sign.sub_(mean).mul_(of_l1[rows]).add_(of_label[rows])
            scale.mul_(q).scatter_add_(1, labels[rows, None].clamp(min=0), -of_label[rows])
            gradient[rows] = scale
        return gradient, None, None


def _spans(logits: Float[Tensor, "S Vd"]) -> Iterator[slice]:
    """Yield the rows to process together: a cache-sized number on CPU, else all."""
    num_rows, width = logits.shape
    at_once = max(1, _CACHED_NUMBERS // width) if logits.device.type == "cpu" else num_rows
    for start in range(0, num_rows, at_once):
        yield slice(start, start + at_once)
