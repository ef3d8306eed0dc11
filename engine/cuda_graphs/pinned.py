"""Provides captured passes with attention plans over fixed buffers."""

from collections.abc import Sequence

from jaxtyping import Int
from torch import Tensor

from kv_pool import AttentionPlan, FixedBackend, FixedPlan


class PinnedAttention:
    """An AttentionBackend that returns the fixed plans of one size, whatever its arguments are.

    A model over it plans in Python as usual, and gets a plan over fixed buffers; `update` fills
    them before a replay.
    """

    def __init__(
        self, backend: FixedBackend, *, num_sequences: int, query_len: int, max_pages: int
    ) -> None:
        self.name = backend.name
        self._backend = backend
        self._size = (num_sequences, query_len, max_pages)
        self._plans: dict[bool, FixedPlan] = {}
        self._step: tuple[Sequence[int], Sequence[Sequence[int]]] | None = None

    def update(
        self,
        *,
        kv_lens: Sequence[int],
        page_tables: Sequence[Sequence[int]],
        least_kv_lens: Sequence[int] | None = None,
    ) -> None:
        """See FixedPlan.update."""
        self._step = (kv_lens, page_tables)
        for plan in self._plans.values():
            plan.update(kv_lens=kv_lens, page_tables=page_tables, least_kv_lens=least_kv_lens)

    def set_kv_lens(self, kv_lens: Int[Tensor, "B"]) -> None:
        """See FixedPlan.set_kv_lens."""
        for plan in self._plans.values():
            plan.set_kv_lens(kv_lens)

    def plan(
        self,
        *,
        query_lens: Sequence[int],
        kv_lens: Sequence[int],
        page_tables: Sequence[Sequence[int]],
        causal: bool,
    ) -> AttentionPlan:
        """Return the fixed plan, as of the latest update; the arguments are ignored."""
        if causal not in self._plans:
            num_sequences, query_len, max_pages = self._size
            plan = self._backend.fixed_plan(
                num_sequences=num_sequences,
                query_len=query_len,
                max_pages=max_pages,
                causal=causal,
            )
            assert self._step is not None, "plan before update"
            plan.update(kv_lens=self._step[0], page_tables=self._step[1])
            self._plans[causal] = plan
        return self._plans[causal]
