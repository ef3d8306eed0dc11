"""Defines the hyperparameters of a training and their schedules."""

import math
from dataclasses import dataclass

from dspark.training.model.loss import LossWeights


@dataclass(frozen=True, slots=True)
class Recipe:
    """Hyperparameters; steps count from 0."""

    epochs: int = 4
    max_steps: int | None = None  # limit below that of the epochs; None: no limit
    sequences_per_step: int = 32
    sequences_per_micro_batch: int = 1  # whose logits are in memory at once
    num_anchors: int = 64  # per sequence and visit
    learning_rate: float = 6e-4
    warm_up: float = 0.04  # share of all steps
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    loss_decay: float = 4.0
    cross_entropy_weight: float = 0.1
    l1_weight: float = 0.9
    confidence_weight: float = 1.0
    first_cross_entropy_weight: float = 1.0
    first_l1_weight: float = 0.1
    weights_move_from: float = 0.1  # share of all steps: start of the change
    weights_move_until: float = 0.4  # share of all steps: end of the linear change
    autocast: bool = False  # products in bfloat16; parameters and losses in float32
    seed: int = 42

    def steps_per_epoch(self, num_sequences: int) -> int:
        return math.ceil(num_sequences / self.sequences_per_step)

    def num_steps(self, num_sequences: int) -> int:
        steps = self.epochs * self.steps_per_epoch(num_sequences)
        return steps if self.max_steps is None else min(steps, self.max_steps)

    def learning_rate_at(self, step: int, *, num_steps: int) -> float:
        """Return the rate: linear over the warm-up, then a cosine to 0."""
        warm = math.ceil(self.warm_up * num_steps)
        if step < warm:
            return self.learning_rate * (step + 1) / (warm + 1)
        progress = (step - warm) / max(1, num_steps - warm)
        return self.learning_rate * (1 + math.cos(math.pi * progress)) / 2

    def weights_at(self, step: int, *, num_steps: int) -> LossWeights:
        """Return the loss weights: cross-entropy first, as L1 has little gradient at first."""
        begin, end = self.weights_move_from * num_steps, self.weights_move_until * num_steps
        moved = min(1.0, max(0.0, (step - begin) / (end - begin) if end > begin else step >= end))
        return LossWeights(
            cross_entropy=_between(
                self.first_cross_entropy_weight, self.cross_entropy_weight, moved
            ),
            l1=_between(self.first_l1_weight, self.l1_weight, moved),
            confidence=self.confidence_weight,
        )


def _between(first: float, last: float, moved: float) -> float:
    return first + (last - first) * moved
