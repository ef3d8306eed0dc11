"""The closed form equals autograd."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from draft.network.draft_vocabulary import NO_DRAFT_ID
from dspark.training.model import vocabulary_losses
from dspark.training.model.vocabulary_losses import VocabularyLosses

WIDTH = 11


def by_autograd(logits: Tensor, labels: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    log_q = torch.log_softmax(logits.float(), dim=-1)
    cross_entropy = F.nll_loss(log_q, labels, reduction="none", ignore_index=NO_DRAFT_ID)
    return cross_entropy, (log_q.exp() - p).abs().sum(dim=-1) + 1 - p.sum(dim=-1)


def rows(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits, labels with one outside the vocabulary, and p with mass on other tokens."""
    generator = torch.Generator().manual_seed(3)
    logits = 3 * torch.randn(count, WIDTH, generator=generator)
    labels = torch.randint(WIDTH, (count,), generator=generator)
    labels[1] = NO_DRAFT_ID
    p = torch.softmax(2 * torch.randn(count, WIDTH + 4, generator=generator), dim=-1)
    return logits, labels, p[:, :WIDTH].contiguous()


@pytest.mark.parametrize("cached", [1, 2 * WIDTH, 1 << 20])
def test_losses_and_gradients_are_those_of_the_formula_for_any_row_split(
    cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary_losses, "_CACHED_NUMBERS", cached)
    logits, labels, p = rows(7)
    weights = torch.rand(2, 7, generator=torch.Generator().manual_seed(4))
    found = []
    for losses in (VocabularyLosses.apply, by_autograd):
        leaf = logits.clone().requires_grad_()
        cross_entropy, l1 = losses(leaf, labels, p)
        (weights[0] * cross_entropy + weights[1] * l1).sum().backward()
        found.append((cross_entropy.detach(), l1.detach(), leaf.grad))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)


def test_half_precision_logits_have_half_precision_gradients() -> None:
    logits, labels, p = rows(4)
    leaf = logits.bfloat16().requires_grad_()
    cross_entropy, l1 = VocabularyLosses.apply(leaf, labels, p)
    assert cross_entropy.dtype == l1.dtype == torch.float32
    (cross_entropy + l1).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.dtype == torch.bfloat16
    exact = leaf.detach().float().requires_grad_()
    sum(by_autograd(exact, labels, p)).sum().backward()
    torch.testing.assert_close(leaf.grad.float(), exact.grad, rtol=1e-2, atol=1e-3)


def test_equal_distributions_have_no_distance() -> None:
    logits, labels, _ = rows(3)
    _, l1 = VocabularyLosses.apply(logits, labels, torch.softmax(logits, dim=-1))
    torch.testing.assert_close(l1, torch.zeros(3), rtol=0, atol=1e-5)
