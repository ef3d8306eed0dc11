"""Defines the interface of attention inside CUDA graphs: fixed shapes, updatable buffers."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from kv_pool.attention.backend import AttentionBackend, AttentionPlan


class NoFixedPlan(Exception):
    """Raised when a backend cannot attend in fixed shapes; the message is the reason."""


@runtime_checkable
class FixedPlan(AttentionPlan, Protocol):
    """Attends over buffers whose addresses never change.

    After `update`, replaying the device operations of an earlier `attend` (a captured graph)
    computes what `attend` would now return.
    """

    def update(self, *, kv_lens: Sequence[int], page_tables: Sequence[Sequence[int]]) -> None:
        """Set lengths and pages of the next step, for all of the plan's sequences.

        See AttentionBackend.plan.
        """
        ...


@runtime_checkable
class FixedBackend(AttentionBackend, Protocol):
    """Builds plans that CUDA graphs can capture."""

    fixed_plan_bytes: int  # device memory of one plan, without its index buffers

    def fixed_plan(
        self, *, num_sequences: int, query_len: int, max_pages: int, causal: bool
    ) -> FixedPlan:
        """Build a plan for num_sequences of query_len queries and at most max_pages pages each.

        Call attend once per kind of layer before the capture: its first call may allocate.
        attend raises NoFixedPlan for options that the backend supports only eagerly.
        """
        ...
