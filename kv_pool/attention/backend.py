"""Defines the interface of attention backends over paged keys and values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class AttentionOptions:
    """Defines how a layer computes its attention scores."""

    scale: float  # multiplies query @ key
    window: int | None = None  # a query at position p attends only to keys > p - window
    softcap: float | None = None  # scores become softcap * tanh(scores / softcap), before masks
    sinks: Float[Tensor, "H"] | None = None  # a logit per head in the denominator, without a value


@runtime_checkable
class AttentionPlan(Protocol):
    """Holds one batch's index tensors and masks: built once, used by all layers."""

    def attend(
        self,
        query: Float[Tensor, "T H D"],
        keys: Float[Tensor, "S Hkv D"],
        values: Float[Tensor, "S Hkv Dv"],
        options: AttentionOptions,
    ) -> Float[Tensor, "T H Dv"]:
        """Attend from T packed query rows to the slots of one layer. No host sync.

        Query head h reads KV head h // (H / Hkv). The result has the query's dtype.
        """
        ...


@runtime_checkable
class AttentionBackend(Protocol):
    """Builds plans. The query rows of sequence b start at row sum(query_lens[:b]).

    kv_lens[b] includes this step's tokens; the queries are at the last query_lens[b] positions.
    Causal: a query at position p attends to keys at positions <= p. Not causal: to all
    kv_lens[b]. Page table entries past a sequence's kv_len are never read.
    """

    name: str

    def plan(
        self,
        *,
        query_lens: Sequence[int],
        kv_lens: Sequence[int],
        page_tables: Sequence[Sequence[int]],
        causal: bool,
    ) -> AttentionPlan: ...
