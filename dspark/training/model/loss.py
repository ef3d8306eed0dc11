"""Computes the losses of a draft: cross-entropy, L1 distance and confidence."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from dspark.training.model.forward import BlockOutput
from dspark.training.model.vocabulary_losses import VocabularyLosses

_TINY = 1e-6


@dataclass(frozen=True, slots=True)
class LossWeights:
    """Weights of the three terms at one step."""

    cross_entropy: float
    l1: float
    confidence: float


def slot_weights(is_valid: Bool[Tensor, "B K"], *, decay: float) -> Float[Tensor, "B K"]:
    """Return exp(-k / decay) for valid slots k = 0, 1, ..., else 0.

    Later slots matter less: they are reached only if all earlier ones are accepted.
    """
    slots = torch.arange(is_valid.shape[1], device=is_valid.device)
    return torch.exp(-slots / decay) * is_valid


@dataclass(frozen=True, slots=True)
class SlotLosses:
    """Every term of every slot, unweighted and in float32."""

    cross_entropy: Float[Tensor, "B K"]
    l1: Float[Tensor, "B K"]  # sum over the vocabulary of |q - p|, between 0 and 2
    confidence: Float[Tensor, "B K"] | None
    confidence_error: Float[Tensor, "B K"] | None  # detached: |predicted - true| acceptance

    @property
    def acceptance(self) -> Float[Tensor, "B K"]:
        """Return the acceptance probability at temperature 1: 1 - |q - p| / 2."""
        return 1 - self.l1.detach() / 2

    def total(
        self, weights: Float[Tensor, "B K"], terms: LossWeights, *, total_weight: float
    ) -> Float[Tensor, ""]:
        """Return this micro-batch's part of a step with the given total weight of its slots."""
        each = terms.cross_entropy * self.cross_entropy + terms.l1 * self.l1
        if self.confidence is not None:
            each = each + terms.confidence * self.confidence
        return (each * weights).sum() / (total_weight + _TINY)


def slot_losses(
    output: BlockOutput, labels: Int[Tensor, "B K"], p: Float[Tensor, "B K Vd"]
) -> SlotLosses:
    """Compute the terms of every slot; those of invalid slots are meaningless.

    labels: draft ids, or NO_DRAFT_ID for a token outside the draft's vocabulary, which has no
    cross-entropy. p: the target's distribution at temperature 1 over the draft's vocabulary,
    float32; its mass on other tokens adds to L1, because q is 0 there. q = softmax of the
    corrected logits. The confidence is trained on the current 1 - |q - p| / 2, with gradients
    into the network.
    """
    slots, width = labels.numel(), p.shape[-1]
    cross_entropy, l1 = VocabularyLosses.apply(  # type: ignore[no-untyped-call]
        output.logits.reshape(slots, width), labels.flatten(), p.view(slots, width)
    )
    cross_entropy, l1 = cross_entropy.view(labels.shape), l1.view(labels.shape)
    confidence = error = None
    if output.confidence_logits is not None:
        chance = (1 - l1.detach() / 2).clamp(0, 1)
        confidence = F.binary_cross_entropy_with_logits(
            output.confidence_logits, chance, reduction="none"
        )
        error = (torch.sigmoid(output.confidence_logits.detach()) - chance).abs()
    return SlotLosses(cross_entropy, l1, confidence, error)
