"""The bytes that a part of a round must read at least: each weight once, and the keys and values
that are attended to. Activations and what is written are small beside them and left out.
"""

from dataclasses import dataclass

import torch
from torch import nn

from engine.build import Built
from engine.pool_size import parameter_bytes


@dataclass(frozen=True, slots=True)
class TargetTraffic:
    """Of one target pass."""

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
            layers=parameter_bytes(layers),
            head=parameter_bytes(built.target.parts.lm_head),
            kv_per_token=sum(storage[0].nbytes for storage in storages),
        )


@dataclass(frozen=True, slots=True)
class DraftTraffic:
    """Of one draft round of one sequence, and of one context write."""

    layers: int
    head: int
    chain: int  # the Markov head's W2, once for every token of the block
    kv_per_token: int
    context_write: int  # fc, and every layer's k_proj and v_proj

    @classmethod
    def of(cls, built: Built) -> "DraftTraffic | None":
        """None without a draft."""
        if built.draft is None:
            return None
        network, pool = built.draft.network, built.pool
        markov = network.markov_head
        written = [network.fc]
        written += [p for a in network.attentions for p in (a.k_proj, a.v_proj)]
        return cls(
            layers=parameter_bytes(network.layers),
            head=parameter_bytes(network.lm_head),
            chain=0 if markov is None else network.config.block_size * _weight(markov.markov_w2),
            kv_per_token=pool.draft_keys[:, 0].nbytes + pool.draft_values[:, 0].nbytes,
            context_write=sum(map(_weight, written)),
        )


def _weight(module: nn.Module) -> int:
    """Bytes of a module's own tensors; they may be views into a larger storage."""
    tensors: list[torch.Tensor] = [*module.parameters(), *module.buffers()]
    return sum(tensor.nbytes for tensor in tensors)
