"""Attention for graphs: the shapes stand still, and what a step changes lies in buffers."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from kv_pool.attention.backend import AttentionBackend, AttentionPlan


class NoFixedPlan(Exception):
    """This attention cannot be had in fixed shapes; the message says why."""


@runtime_checkable
class FixedPlan(AttentionPlan, Protocol):
    """A plan whose device memory stays where it is.

    After `update`, whoever repeats the device operations of an earlier `attend` (a captured
    graph does) gets what `attend` would now give.
    """

    def update(self, *, kv_lens: Sequence[int], page_tables: Sequence[Sequence[int]]) -> None:
        """Describe the next step. As many sequences as the plan has; see AttentionBackend.plan."""
        ...


@runtime_checkable
class FixedBackend(AttentionBackend, Protocol):
    """An attention backend that graphs can hold."""

    fixed_plan_bytes: (
        int  # of the device that a plan keeps, beside the buffers that it is read from
    )

    def fixed_plan(
        self, *, num_sequences: int, query_len: int, max_pages: int, causal: bool
    ) -> FixedPlan:
        """For num_sequences of query_len queries each, and at most max_pages pages each.

        What attend does first for a kind of layer it does once, before anything is captured.
        attend raises NoFixedPlan for what it could only do eagerly.
        """
        ...
