"""Defines the interface of attention inside CUDA graphs: fixed shapes, updatable buffers."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from jaxtyping import Int
from torch import Tensor

from kv_pool.attention.backend import AttentionBackend, AttentionPlan


class NoFixedPlan(Exception):
    """Raised when a backend cannot attend in fixed shapes; the message is the reason."""


@runtime_checkable
class FixedPlan(AttentionPlan, Protocol):
    """Attends over buffers whose addresses never change.

    After `update`, replaying the device operations of an earlier `attend` (a captured graph)
    computes what `attend` would now return.
    """

    def update(
        self,
        *,
        kv_lens: Sequence[int],
        page_tables: Sequence[Sequence[int]],
        least_kv_lens: Sequence[int] | None = None,
    ) -> None:
        """Set lengths and pages of the next step, for all of the plan's sequences.

        With least_kv_lens, kv_lens are upper bounds: set_kv_lens follows, with lengths that are at
        least these. See AttentionBackend.plan.
        """
        ...

    def set_kv_lens(self, kv_lens: Int[Tensor, "B"]) -> None:
        """Set the lengths of the first B sequences to numbers that only the device has."""
        ...


@runtime_checkable
class FixedBackend(AttentionBackend, Protocol):
    """Builds plans that CUDA graphs can capture."""

    fixed_plan_bytes: int  # device memory of one plan, without its index buffers
    follows_device_lens: bool  # whether plans have set_kv_lens; others need lengths on the host

    def fixed_plan(
        self, *, num_sequences: int, query_len: int, max_pages: int, causal: bool
    ) -> FixedPlan:
        """Build a plan for num_sequences of query_len queries and at most max_pages pages each.

        Call attend once per kind of layer before the capture: its first call may allocate.
        attend raises NoFixedPlan for options that the backend supports only eagerly.
        """
        ...
