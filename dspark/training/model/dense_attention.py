"""Computes attention of many blocks over packed contexts, with a block mask."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from draft.network.network import DSparkNetwork
from dspark.training.model.blocks import MicroBatch


@dataclass(frozen=True, slots=True)
class Visibility:
    """Which keys a slot of a block may attend to, as in serving.

    keys       [ T context tokens | Q = B * K slots of blocks ]
    a query attends to context of its sequence before its anchor, and to its whole block
    """

    may_see: Bool[Tensor, "Q TQ"]
    query_positions: Int[Tensor, "Q"]
    key_positions: Int[Tensor, "TQ"]

    @classmethod
    def of(cls, batch: MicroBatch, *, block_size: int) -> "Visibility":
        anchors = batch.anchor_positions.repeat_interleave(block_size)[:, None]  # (Q, 1)
        owners = batch.block_owners.repeat_interleave(block_size)[:, None]
        context = (batch.context_owners == owners) & (batch.context_positions < anchors)
        blocks = torch.arange(len(batch.anchor_positions), device=anchors.device)
        blocks = blocks.repeat_interleave(block_size)
        own = blocks[:, None] == blocks
        steps = torch.arange(block_size, device=anchors.device)
        positions = (batch.anchor_positions[:, None] + steps).flatten()
        return cls(
            may_see=torch.cat([context, own], dim=1),
            query_positions=positions,
            key_positions=torch.cat([batch.context_positions, positions]),
        )

    def within(self, window: int | None) -> Bool[Tensor, "Q TQ"]:
        """Restrict to keys less than `window` before the query, for a sliding window."""
        if window is None:
            return self.may_see
        return self.may_see & (self.key_positions > self.query_positions[:, None] - window)


class DenseBlock:
    """The training form of BlockAttend, with dense context keys and values of every layer."""

    def __init__(self, *, network: DSparkNetwork, batch: MicroBatch) -> None:
        self._visibility = Visibility.of(batch, block_size=network.config.block_size)
        context = network.project_taps(batch.taps)
        rotations = network.rotations(batch.context_positions)
        self._context = [
            attention.keys_values(context, rotations[attention.rotary])
            for attention in network.attentions
        ]
        self._masks: Mapping[int | None, Tensor] = {
            window: self._visibility.within(window)
            for window in {layer.sliding_window for layer in network.config.layers}
        }

    @property
    def positions(self) -> Int[Tensor, "Q"]:
        return self._visibility.query_positions

    def attend(
        self,
        layer: int,
        query: Float[Tensor, "T H D"],
        keys: Float[Tensor, "T Hkv D"],
        values: Float[Tensor, "T Hkv D"],
        *,
        scale: float,
        window: int | None,
    ) -> Float[Tensor, "T H D"]:
        context_keys, context_values = self._context[layer]
        attended = F.scaled_dot_product_attention(
            query.transpose(0, 1)[None],
            torch.cat([context_keys, keys]).transpose(0, 1)[None],
            torch.cat([context_values, values]).transpose(0, 1)[None],
            attn_mask=self._masks[window],
            scale=scale,
            enable_gqa=True,
        )
        return attended[0].transpose(0, 1)
