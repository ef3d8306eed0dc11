"""Validates a draft on held-out sequences."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from draft.network.network import DSparkNetwork
from dspark.training.data.examples import Examples
from dspark.training.model.blocks import MicroBatch, draw_anchors
from dspark.training.run.recipe import Recipe
from dspark.training.run.trainer import losses_of, seeded

_STREAM = 3


@dataclass(frozen=True, slots=True)
class Validation:
    """Acceptance at temperature 1 with teacher forcing, JSON-ready."""

    acceptance: tuple[float, ...]  # by position: the mean of 1 - |q - p| / 2
    accept_length: float  # expected tokens per round, including the bonus
    confidence_error: float | None  # mean distance between predicted and true acceptance
    num_sequences: int

    @classmethod
    def of(
        cls, acceptance: Sequence[float], confidence_error: float | None, num_sequences: int
    ) -> "Validation":
        length, survival = 1.0, 1.0
        for chance in acceptance:
            survival *= chance
            length += survival
        return cls(tuple(acceptance), length, confidence_error, num_sequences)


def validate(
    network: DSparkNetwork, examples: Examples, recipe: Recipe, *, device: torch.device
) -> Validation:
    """Validate on every sequence, with the same anchors in each call."""
    size = network.config.block_size
    accepted, counts = torch.zeros(size).double(), torch.zeros(size).double()
    error, num_sequences = 0.0, 0
    was_training = network.training
    network.eval()
    with torch.no_grad():
        for index in range(len(examples)):
            generator = seeded(recipe.seed, _STREAM, index)
            anchors = draw_anchors(
                examples.is_answer(index), count=recipe.num_anchors, generator=generator
            )
            if not len(anchors):
                continue
            batch = MicroBatch.of([examples.example(index)], [anchors], block_size=size)
            batch = batch.to(device)
            losses = losses_of(network, batch, autocast=recipe.autocast)
            is_valid = batch.labels.is_valid
            accepted += (losses.acceptance * is_valid).sum(0).double().cpu()
            counts += is_valid.sum(0).double().cpu()
            if losses.confidence_error is not None:
                error += float((losses.confidence_error * is_valid).sum())
            num_sequences += 1
    network.train(was_training)
    acceptance = (accepted / counts.clamp(min=1)).tolist()
    has_confidence = network.confidence_head is not None
    mean_error = error / max(1.0, float(counts.sum())) if has_confidence else None
    return Validation.of(acceptance, mean_error, num_sequences)
