"""Runs the draft over all blocks of a micro-batch, with teacher forcing."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draft.network.heads import MarkovHead
from draft.network.network import DSparkNetwork
from dspark.training.model.blocks import MicroBatch
from dspark.training.model.dense_attention import DenseBlock


@dataclass(frozen=True, slots=True)
class BlockOutput:
    """Logits and confidences of every slot, given the true tokens before it."""

    logits: Float[Tensor, "B K V"]  # corrected by the Markov head
    confidence_logits: Float[Tensor, "B K"] | None  # float32


ForwardBlocks = Callable[[DSparkNetwork, MicroBatch], BlockOutput]


def forward_blocks(network: DSparkNetwork, batch: MicroBatch) -> BlockOutput:
    """Run one pass over B blocks; equals serving for one block."""
    block = DenseBlock(network=network, batch=batch)
    ids = network.block_ids(batch.anchor_ids)
    hidden = network.hidden(ids, block.positions.view(ids.shape), block)
    logits = network.base_logits(hidden)
    if network.markov_head is not None:
        previous = torch.cat([batch.anchor_ids[:, None], batch.labels.ids[:, :-1]], dim=1)
        is_chain = network.config.markov_kind == "rnn"
        logits = logits + _bias(network.markov_head, previous, hidden, is_chain=is_chain)
    confidence = network.confidence_logits(hidden, batch.anchor_ids, batch.labels.ids)
    return BlockOutput(logits, confidence)


def _bias(
    head: MarkovHead,
    previous: Int[Tensor, "B K"],
    hidden: Float[Tensor, "B K E"],
    *,
    is_chain: bool,
) -> Float[Tensor, "B K V"]:
    """Compute all slots at once, or one by one if the state feeds the next slot."""
    if not is_chain:
        bias, _ = head.bias(previous.flatten(), hidden.flatten(0, 1), None)
        return bias.view(*previous.shape, -1)
    slots, state = [], None
    for k in range(previous.shape[1]):
        bias, state = head.bias(previous[:, k], hidden[:, k], state)
        slots.append(bias)
    return torch.stack(slots, dim=1)
