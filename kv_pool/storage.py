"""Stores the keys and values of target and draft under one set of page ids."""

from collections.abc import Sequence
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

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        return self.num_kv_heads * (self.key_dim + self.value_dim) * dtype.itemsize


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

    def __init__(
        self,
        *,
        num_pages: int,
        page_size: int,
        target_shapes: Sequence[KVShape],
        target_dtype: torch.dtype,
        num_draft_layers: int = 0,
        draft_shape: KVShape | None = None,
        draft_dtype: torch.dtype | None = None,
        device: torch.device,
    ) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.num_slots = num_pages * page_size
        self.num_draft_layers = num_draft_layers
        shape = _draft_shape(num_draft_layers, draft_shape)

        def zeros(heads: int, dim: int) -> Tensor:
            return torch.zeros(self.num_slots, heads, dim, dtype=target_dtype, device=device)

        def draft_zeros(dim: int) -> Tensor:
            size = (num_draft_layers, self.num_slots, shape.num_kv_heads, dim)
            return torch.zeros(size, dtype=draft_dtype or target_dtype, device=device)

        self._keys = [zeros(s.num_kv_heads, s.key_dim) for s in target_shapes]
        self._values = [zeros(s.num_kv_heads, s.value_dim) for s in target_shapes]
        self.draft_keys: Float[Tensor, "L S H D"] = draft_zeros(shape.key_dim)
        self.draft_values: Float[Tensor, "L S H Dv"] = draft_zeros(shape.value_dim)

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

    @staticmethod
    def bytes_per_page(
        page_size: int,
        target_shapes: Sequence[KVShape],
        target_dtype: torch.dtype,
        num_draft_layers: int = 0,
        draft_shape: KVShape | None = None,
        draft_dtype: torch.dtype | None = None,
    ) -> int:
        """Count the bytes of one page, summed over all layers of both models."""
        target = sum(shape.bytes_per_token(target_dtype) for shape in target_shapes)
        shape = _draft_shape(num_draft_layers, draft_shape)
        draft = num_draft_layers * shape.bytes_per_token(draft_dtype or target_dtype)
        return page_size * (target + draft)


def _draft_shape(num_draft_layers: int, shape: KVShape | None) -> KVShape:
    if shape is None:
        assert num_draft_layers == 0, f"{num_draft_layers} draft layers without a shape"
        return KVShape(num_kv_heads=0, key_dim=0, value_dim=0)
    return shape
