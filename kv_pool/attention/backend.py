"""One signature for every attention over paged keys and values."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor


@runtime_checkable
class AttentionPlan(Protocol):
    """One batch's index tensors and masks: built once, shared by all layers."""

    def attend(
        self,
        query: Float[Tensor, "T H D"],
        keys: Float[Tensor, "S Hkv D"],
        values: Float[Tensor, "S Hkv Dv"],
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Float[Tensor, "H"] | None = None,
    ) -> Float[Tensor, "T H Dv"]:
        """Attend from T packed query rows to the slots of one layer. No host sync.

        Query head h reads KV head h // (H / Hkv). The result has the query's dtype.

        scale    multiplies query @ key
        window   a query at position p sees only keys at positions > p - window
        softcap  scores become softcap * tanh(scores / softcap), before any mask
        sinks    one more logit per head in the softmax's denominator, worth no value
        """
        ...


@runtime_checkable
class AttentionBackend(Protocol):
    """Makes plans. Sequence b owns the query rows sum(query_lens[:b]) and those that follow.

    kv_lens[b] counts this step's own tokens too; the queries stand at the last query_lens[b]
    of its positions. Causal: a query at position p sees keys at positions <= p. Not causal: it
    sees all kv_lens[b]. The entries of a page table past a sequence's kv_len are never read;
    they may be anything.
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
