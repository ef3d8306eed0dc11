"""Computes the fewest bytes that a part of a round reads: weights, keys and values.

Activations and writes are small in comparison and left out.
"""

from dataclasses import dataclass
from typing import Any

from torch import nn

from engine.build import Built


@dataclass(frozen=True, slots=True)
class TargetTraffic:
    """Bytes read by one target pass."""

    layers: int  # all weights between the embedding and the head
    head: int
    kv_per_token: int  # keys and values of all layers

    @classmethod
    def of(cls, built: Built) -> "TargetTraffic":
        layers, pool = built.target.parts.layers, built.pool
        storages = [
            s(i) for i in range(len(layers)) for s in (pool.target_keys, pool.target_values)
        ]
        return cls(
            layers=weight_bytes(layers),
            head=weight_bytes(built.target.parts.lm_head),
            kv_per_token=sum(storage[0].nbytes for storage in storages),
        )


@dataclass(frozen=True, slots=True)
class DraftTraffic:
    """Bytes read by one draft round of one sequence, and by one context write."""

    layers: int
    head: int
    chain: int  # the Markov head's W2, once per token of the block
    kv_per_token: int
    context_write: int  # fc, and every layer's K and V projections

    @classmethod
    def of(cls, built: Built) -> "DraftTraffic | None":
        """Return None without a draft."""
        if built.draft is None:
            return None
        network, pool = built.draft.network, built.pool
        markov = network.markov_head
        written = [network.fc]
        written += [p for a in network.attentions for p in a.kv_projections]
        return cls(
            layers=weight_bytes(network.layers),
            head=weight_bytes(network.lm_head),
            chain=0
            if markov is None
            else network.config.block_size * weight_bytes(markov.markov_w2),
            kv_per_token=pool.draft_keys[:, 0].nbytes + pool.draft_values[:, 0].nbytes,
            context_write=sum(map(weight_bytes, written)),
        )


def weight_bytes(module: nn.Module) -> int:
    """Return the bytes of a module's tensors, each once; views count by their own size."""
    tensors = {t.data_ptr(): t for t in (*module.parameters(), *module.buffers())}
    return sum(map(_bytes, tensors.values()))


def _bytes(tensor: Any) -> int:
    """Return the bytes of a tensor; a quantised one consists of several plain ones."""
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return sum(_bytes(getattr(tensor, name)) for name in names)
    return int(tensor.nbytes)
