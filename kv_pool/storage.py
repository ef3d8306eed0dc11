"""Stores the keys and values of target and draft under one set of page ids."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, slots=True)
class KVShape:
    """Describes the keys and values that one layer stores for one token."""

    num_kv_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        return self.num_kv_heads * (self.key_dim + self.value_dim) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Describes the keys and values that one page stores, and on which device.

    Pools are made from a layout, and their size is computed from it.
    """

    page_size: int  # tokens
    device: torch.device
    target: tuple[KVShape, ...] = ()  # one for each layer; they may differ
    draft: tuple[KVShape, ...] = ()  # one for each layer; all alike, for one tensor holds them

    def __post_init__(self) -> None:
        assert len(set(self.draft)) <= 1, f"draft layers of different shapes: {self.draft}"

    @property
    def bytes_per_page(self) -> int:
        """Count the bytes of one page, summed over all layers of both models."""
        return self.page_size * sum(s.bytes_per_token for s in (*self.target, *self.draft))


class KVPool:
    """Allocates and writes the keys and values of every page, for both models.

                        page 0        page 1        page 2
    slot              0  1  2  3    4  5  6  7    8  9 10 11      page_size = 4
    target layer 0    .  .  .  .    k  k  k  k    .  .  .  .      [S, H, D] each, and values;
    target layer n    .  .  .  .    k  k  k  k    .  .  .  .      shapes may differ by layer
    draft  all L      .  .  .  .    k  k  k  k    .  .  .  .      [L, S, H, D], layer-major

    One page table, one prefix cache and one preemption rule serve both models.
    The sequences' lengths, not the pool, determine which slots hold computed values.
    Storage starts as zeros: a kernel that loads a whole page and masks it later reads no NaN.
    """

    def __init__(self, layout: KVLayout, *, num_pages: int) -> None:
        self.page_size = layout.page_size
        self.num_pages = num_pages
        self.num_slots = num_pages * layout.page_size
        self.num_draft_layers = len(layout.draft)

        def zeros(shape: KVShape, dim: int, *layers: int) -> Tensor:
            size = (*layers, self.num_slots, shape.num_kv_heads, dim)
            return torch.zeros(size, dtype=shape.dtype, device=layout.device)

        self._keys = [zeros(s, s.key_dim) for s in layout.target]
        self._values = [zeros(s, s.value_dim) for s in layout.target]
        draft = layout.draft[0] if layout.draft else KVShape(0, 0, 0, torch.float32)
        self.draft_keys: Float[Tensor, "L S H D"] = zeros(draft, draft.key_dim, len(layout.draft))
        self.draft_values: Float[Tensor, "L S H Dv"] = zeros(
            draft, draft.value_dim, len(layout.draft)
        )

    def target_keys(self, layer: int) -> Float[Tensor, "S H D"]:
        """Return one target layer's keys of all slots: the storage itself, not a copy."""
        return self._keys[layer]

    def target_values(self, layer: int) -> Float[Tensor, "S H Dv"]:
        """Return one target layer's values of all slots: the storage itself, not a copy."""
        return self._values[layer]

    def write_target(
        self,
        layer: int,
        slots: Int[Tensor, "T"],
        keys: Float[Tensor, "T H D"],
        values: Float[Tensor, "T H Dv"],
    ) -> None:
        """Store one target layer's keys and values of T tokens."""
        self._keys[layer][slots] = keys
        self._values[layer][slots] = values

    def write_draft(
        self,
        slots: Int[Tensor, "N"],
        keys: Float[Tensor, "L N H D"],
        values: Float[Tensor, "L N H Dv"],
    ) -> None:
        """Store N tokens in all draft layers: one indexed store for keys, one for values."""
        self.draft_keys[:, slots] = keys
        self.draft_values[:, slots] = values

    def write_draft_layer(
        self,
        layer: int,
        slots: Int[Tensor, "N"],
        keys: Float[Tensor, "N H D"],
        values: Float[Tensor, "N H Dv"],
    ) -> None:
        """Store N tokens in one draft layer."""
        self.draft_keys[layer, slots] = keys
        self.draft_values[layer, slots] = values
