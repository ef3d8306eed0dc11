"""Trains a network step by step, with randomness derived from the seed and the step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from draft.network.network import DSparkNetwork, cap_logits
from dspark.training.data.examples import Examples
from dspark.training.model.blocks import Labels, MicroBatch, draw_anchors
from dspark.training.model.forward import ForwardBlocks, forward_blocks
from dspark.training.model.loss import SlotLosses, slot_losses, slot_weights
from dspark.training.run.recipe import Recipe

_EPOCH_STREAM, _ANCHOR_STREAM, _TRIAL_STREAM = 1, 2, 4  # 3 is the validation's
_LIVE_LOGITS = 4  # float32 tensors of [slots, Vd] at the peak of forward and backward


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step, JSON-ready."""

    step: int  # from 1
    loss: float
    cross_entropy: float  # this and the next: weighted means over slots
    l1: float
    learning_rate: float
    gradient_norm: float  # before clipping
    num_slots: int  # valid labels


class Trainer:
    """Owns the parameters, the optimiser and the step number of a training.

    The data order of an epoch and the anchors of a step have generators seeded with (seed, epoch)
    and (seed, step). The state is therefore parameters, optimiser and step, and a resumed
    training on a CPU is bitwise equal to an uninterrupted one.
    """

    def __init__(
        self,
        *,
        network: DSparkNetwork,
        examples: Examples,
        recipe: Recipe,
        device: torch.device,
        forward: ForwardBlocks = forward_blocks,
    ) -> None:
        """forward: forward_blocks, or a compiled form of it."""
        assert len(examples) > 0, "nothing to train on"
        self.network = network
        self.step = 0
        self.num_steps = recipe.num_steps(len(examples))
        self._examples = examples
        self._recipe = recipe
        self._device = device
        self._forward = forward
        self._parameters = [p for p in network.parameters() if p.requires_grad]
        self._optimiser = torch.optim.AdamW(
            self._parameters, lr=recipe.learning_rate, weight_decay=recipe.weight_decay
        )

    def train_step(self) -> StepReport:
        """Update the parameters once."""
        recipe, step = self._recipe, self.step
        indices = self._indices(step)
        generator = seeded(recipe.seed, _ANCHOR_STREAM, step)
        anchors = [
            draw_anchors(self._examples.is_answer(i), count=recipe.num_anchors, generator=generator)
            for i in indices
        ]
        total_weight, num_slots = self._weigh(indices, anchors)
        rate = recipe.learning_rate_at(step, num_steps=self.num_steps)
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        self._optimiser.zero_grad(set_to_none=True)
        sums = torch.zeros(3, dtype=torch.float64)
        for start in range(0, len(indices), recipe.sequences_per_micro_batch):
            stop = start + recipe.sequences_per_micro_batch
            sums += self._micro_step(indices[start:stop], anchors[start:stop], total_weight)
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, recipe.clip_norm)
        self._optimiser.step()
        self.step += 1
        loss, cross_entropy, l1 = sums.tolist()
        return StepReport(self.step, loss, cross_entropy, l1, rate, float(norm), num_slots)

    def state(self) -> dict[str, Any]:
        """Return the state on which the next steps depend, in addition to data and recipe."""
        trained = {n: p.detach() for n, p in self.network.named_parameters() if p.requires_grad}
        return {"step": self.step, "parameters": trained, "optimiser": self._optimiser.state_dict()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
        copy_parameters(state["parameters"], self.network)
        self._optimiser.load_state_dict(state["optimiser"])
        self.step = int(state["step"])

    def _indices(self, step: int) -> list[int]:
        """Return the sequences of a step; each epoch has another order."""
        epoch, place = divmod(step, self._recipe.steps_per_epoch(len(self._examples)))
        generator = seeded(self._recipe.seed, _EPOCH_STREAM, epoch)
        order = torch.randperm(len(self._examples), generator=generator).tolist()
        start = place * self._recipe.sequences_per_step
        return order[start : start + self._recipe.sequences_per_step]

    def _weigh(self, indices: Sequence[int], anchors: Sequence[Tensor]) -> tuple[float, int]:
        """Return the total weight and the number of the valid slots of a step."""
        weight, count = 0.0, 0
        for index, chosen in zip(indices, anchors, strict=True):
            labels = Labels.after(
                self._examples.token_ids(index),
                self._examples.is_answer(index),
                chosen,
                block_size=self.network.config.block_size,
            )
            weights = slot_weights(labels.is_valid, decay=self._recipe.loss_decay)
            weight += float(weights.sum())
            count += int(labels.is_valid.sum())
        return weight, count

    def _micro_step(
        self, indices: Sequence[int], anchors: Sequence[Tensor], total_weight: float
    ) -> Float[Tensor, "3"]:
        """Accumulate gradients of some sequences; return their parts of loss, cross-entropy, L1."""
        if not sum(len(chosen) for chosen in anchors):
            return torch.zeros(3, dtype=torch.float64)
        examples = [self._examples.example(i) for i in indices]
        batch = MicroBatch.of(examples, anchors, block_size=self.network.config.block_size)
        batch = batch.to(self._device)
        losses = losses_of(
            self.network, batch, autocast=self._recipe.autocast, forward=self._forward
        )
        weights = slot_weights(batch.labels.is_valid, decay=self._recipe.loss_decay)
        terms = self._recipe.weights_at(self.step, num_steps=self.num_steps)
        loss = losses.total(weights, terms, total_weight=total_weight)
        loss.backward()  # type: ignore[no-untyped-call]
        parts = [(x.detach() * weights).sum() for x in (losses.cross_entropy, losses.l1)]
        sums = torch.stack([loss.detach(), *(part / total_weight for part in parts)])
        return sums.to("cpu", torch.float64)


def losses_of(
    network: DSparkNetwork,
    batch: MicroBatch,
    *,
    autocast: bool,
    forward: ForwardBlocks = forward_blocks,
) -> SlotLosses:
    """Run one micro-batch and compute its losses against the target's distribution."""
    with torch.autocast(batch.taps.device.type, torch.bfloat16, enabled=autocast):
        output = forward(network, batch)
    labels = batch.labels.ids
    if network.vocabulary is not None:
        labels = network.vocabulary.from_target(labels, vocab_size=network.config.vocab_size)
    with torch.no_grad():
        head = network.lm_head.get_parameter("weight")
        logits = F.linear(batch.target_hidden.to(head.dtype), head).float()
        logits = cap_logits(logits, network.config.variant.logit_cap)
        p = logits.sub_(batch.log_normaliser[..., None]).exp_()
    return slot_losses(output, labels, p)


def trial_batch(examples: Examples, recipe: Recipe, *, block_size: int) -> MicroBatch:
    """Build a typical micro-batch from the first sequences, on the CPU."""
    chosen = [
        examples.example(i) for i in range(min(recipe.sequences_per_micro_batch, len(examples)))
    ]
    generator = seeded(recipe.seed, _TRIAL_STREAM)
    anchors = [
        draw_anchors(e.is_answer, count=recipe.num_anchors, generator=generator) for e in chosen
    ]
    return MicroBatch.of(chosen, anchors, block_size=block_size)


def copy_parameters(parameters: Mapping[str, Tensor], network: DSparkNetwork) -> None:
    """Copy named tensors into the parameters of a network."""
    own = dict(network.named_parameters())
    with torch.no_grad():
        for name, tensor in parameters.items():
            own[name].copy_(tensor)


def seeded(seed: int, *numbers: int) -> torch.Generator:
    """Return a generator for a seed, a purpose and a number."""
    mixed = seed & 0xFFFFFFFF
    for number in numbers:  # multiplication by an odd constant is injective
        mixed = (mixed * 6364136223846793005 + 1442695040888963407 + number) & ((1 << 63) - 1)
    return torch.Generator().manual_seed(mixed)


def peak_bytes(network: DSparkNetwork, recipe: Recipe, *, longest: int) -> int:
    """Estimate the peak memory of a step: parameters, gradients, optimiser, logits, scores.

    An upper estimate. longest: tokens of the longest sequence.
    """
    config = network.config
    slots = recipe.sequences_per_micro_batch * recipe.num_anchors * config.block_size
    trained = sum(p.numel() for p in network.parameters() if p.requires_grad)
    frozen = sum(p.nbytes for p in network.parameters() if not p.requires_grad)
    keys = recipe.sequences_per_micro_batch * longest + slots
    scores = 3 * slots * keys * config.num_heads * config.num_layers
    logits = _LIVE_LOGITS * slots * config.num_outputs
    return frozen + 4 * (4 * trained + logits + scores)
