"""Loss terms computed by hand, and the schedules of a recipe."""

import math

import pytest
import torch

from draft.network.draft_vocabulary import NO_DRAFT_ID
from dspark.training.model.forward import BlockOutput
from dspark.training.model.loss import LossWeights, slot_losses, slot_weights
from dspark.training.run.recipe import Recipe
from dspark.training.run.validation import Validation

Q = torch.tensor([[[0.5, 0.25, 0.25], [0.8, 0.1, 0.1]]])
P = torch.tensor([[[0.25, 0.5, 0.25], [0.8, 0.1, 0.1]]])
LABELS = torch.tensor([[1, 0]])
BOTH = torch.tensor([[True, True]])


def test_terms_are_those_of_the_paper() -> None:
    output = BlockOutput(Q.log(), torch.tensor([[0.0, 3.0]]))
    losses = slot_losses(output, LABELS, P)
    torch.testing.assert_close(losses.cross_entropy, -torch.tensor([[0.25, 0.8]]).log())
    torch.testing.assert_close(losses.l1, torch.tensor([[0.5, 0.0]]))
    torch.testing.assert_close(losses.acceptance, torch.tensor([[0.75, 1.0]]))
    assert losses.confidence is not None
    expected = torch.tensor([[math.log(2), math.log(1 + math.exp(-3))]])
    torch.testing.assert_close(losses.confidence, expected)


def test_tokens_outside_the_draft_vocabulary_count_in_l1_only() -> None:
    labels, p = torch.tensor([[NO_DRAFT_ID, 0]]), P[..., :2]
    q = torch.tensor([[[0.5, 0.5], [0.75, 0.25]]])
    losses = slot_losses(BlockOutput(q.log(), None), labels, p)
    torch.testing.assert_close(losses.cross_entropy, torch.tensor([[0.0, -math.log(0.75)]]))
    torch.testing.assert_close(losses.l1, torch.tensor([[0.25 + 0.25, 0.05 + 0.15 + 0.1]]))


def test_micro_batches_add_up_to_the_weighted_mean() -> None:
    losses = slot_losses(BlockOutput(Q.log(), None), LABELS, P)
    weights = slot_weights(BOTH, decay=4.0)
    torch.testing.assert_close(weights, torch.tensor([[1.0, math.exp(-0.25)]]))
    total = losses.total(weights, LossWeights(1.0, 0.0, 1.0), total_weight=float(weights.sum()))
    by_hand = (losses.cross_entropy * weights).sum() / weights.sum()
    torch.testing.assert_close(total, by_hand)


def test_an_invalid_slot_has_no_gradient() -> None:
    logits = torch.zeros(1, 2, 3, requires_grad=True)
    losses = slot_losses(BlockOutput(logits, None), LABELS, P)
    weights = slot_weights(torch.tensor([[True, False]]), decay=4.0)
    losses.total(weights, LossWeights(0.1, 0.9, 1.0), total_weight=1.0).backward()
    assert logits.grad is not None
    assert logits.grad[0, 0].abs().sum() > 0
    assert logits.grad[0, 1].abs().sum() == 0


def test_the_rate_rises_over_the_warm_up_and_falls_as_a_cosine() -> None:
    recipe = Recipe(learning_rate=1.0, warm_up=0.1)
    rates = [recipe.learning_rate_at(step, num_steps=100) for step in range(100)]
    assert rates[:10] == sorted(rates[:10])
    assert rates[0] > 0
    assert rates[10] == 1.0
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[55] == pytest.approx(0.5)
    assert rates[99] < 0.001


def test_weights_move_from_cross_entropy_to_the_recipe() -> None:
    recipe = Recipe(weights_move_from=0.2, weights_move_until=0.4)
    terms = [recipe.weights_at(step, num_steps=100) for step in (0, 19, 30, 40, 99)]
    assert [t.cross_entropy for t in terms] == pytest.approx([1.0, 1.0, 0.55, 0.1, 0.1])
    assert [t.l1 for t in terms] == pytest.approx([0.1, 0.1, 0.5, 0.9, 0.9])


def test_expected_accept_length_counts_the_bonus_and_what_survives() -> None:
    assert Validation.of([0.5, 0.5], None, 1).accept_length == pytest.approx(1.75)
