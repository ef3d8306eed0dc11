"""What a draft is trained for: the target's token, its distribution, and knowing its own worth."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from dspark.training.model.forward import BlockGuesses
from dspark.training.model.vocabulary_losses import VocabularyLosses

_TINY = 1e-6


@dataclass(frozen=True, slots=True)
class LossWeights:
    """Of the three terms, at one step."""

    cross_entropy: float
    l1: float
    confidence: float


def slot_weights(is_valid: Bool[Tensor, "B K"], *, decay: float) -> Float[Tensor, "B K"]:
    """exp(-k / decay) for slot k = 0, 1, ... that counts, else 0.

    A slot far from the anchor is reached only when all before it stood.
    """
    slots = torch.arange(is_valid.shape[1], device=is_valid.device)
    return torch.exp(-slots / decay) * is_valid


@dataclass(frozen=True, slots=True)
class SlotLosses:
    """Every term of every slot, unweighted and in float32."""

    cross_entropy: Float[Tensor, "B K"]
    l1: Float[Tensor, "B K"]  # sum over the vocabulary of |q - p|, between 0 and 2
    confidence: Float[Tensor, "B K"] | None
    confidence_error: Float[Tensor, "B K"] | None  # detached: |said - true| chance of acceptance

    @property
    def acceptance(self) -> Float[Tensor, "B K"]:
        """The chance that the slot's token stands at temperature 1: 1 - |q - p| / 2."""
        return 1 - self.l1.detach() / 2

    def total(
        self, weights: Float[Tensor, "B K"], terms: LossWeights, *, total_weight: float
    ) -> Float[Tensor, ""]:
        """This micro-batch's share of a step whose slots weigh total_weight together."""
        each = terms.cross_entropy * self.cross_entropy + terms.l1 * self.l1
        if self.confidence is not None:
            each = each + terms.confidence * self.confidence
        return (each * weights).sum() / (total_weight + _TINY)


def slot_losses(
    guesses: BlockGuesses, words: Int[Tensor, "B K"], p: Float[Tensor, "B K Vd"]
) -> SlotLosses:
    """The terms for every slot; those of slots that do not count mean nothing.

    words: labels in draft ids, NO_DRAFT_ID where the draft has no word: no cross-entropy there.
    p: the target's distribution at temperature 1 on the draft's words, float32. What it gives to
    other tokens counts for L1 as well, for there q is 0. q = softmax of the draft's corrected
    logits. The confidence is taught 1 - |q - p| / 2 as it is now; the gradient goes into the
    network too.
    """
    slots, width = words.numel(), p.shape[-1]
    cross_entropy, l1 = VocabularyLosses.apply(  # type: ignore[no-untyped-call]
        guesses.logits.reshape(slots, width), words.flatten(), p.view(slots, width)
    )
    cross_entropy, l1 = cross_entropy.view(words.shape), l1.view(words.shape)
    confidence = error = None
    if guesses.confidence_logits is not None:
        chance = (1 - l1.detach() / 2).clamp(0, 1)
        confidence = F.binary_cross_entropy_with_logits(
            guesses.confidence_logits, chance, reduction="none"
        )
        error = (torch.sigmoid(guesses.confidence_logits.detach()) - chance).abs()
    return SlotLosses(cross_entropy, l1, confidence, error)
