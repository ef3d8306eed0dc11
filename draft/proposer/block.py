"""Defines the input and output of a draft pass: BlockRequest, ChainMask and DraftBlock."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, slots=True)
class BlockSampling:
    """Selects the rows of a batch that sample their tokens; all others take the argmax."""

    rows: Int[Tensor, "R"]  # indices into the batch, without repetition
    temperatures: Float[Tensor, "R"]  # > 0
    uniforms: Float[Tensor, "R K"]  # float64, in [0, 1)


@runtime_checkable
class ChainMask(Protocol):
    """Restricts the tokens of some rows while a block is sampled, slot by slot.

    Advancing waits for the device if the tokens lie on one. A row whose earlier token was not
    allowed allows every token from then on.
    """

    @property
    def rows(self) -> Int[Tensor, "M"]:
        """Return the restricted rows: indices into the batch, without repetition."""
        ...

    def advance(self, k: int, previous_ids: Int[Tensor, "M"]) -> None:
        """Move to slot k. Slots come in order; slot 0 starts a new block.

        previous_ids are the rows' tokens of slot k - 1; their anchors for k = 0.
        """
        ...

    def allows(self, token_ids: Int[Tensor, "M"]) -> bool:
        """Check whether every row allows its token of token_ids in this slot."""
        ...

    def few(self, most: int) -> list[list[int]] | None:
        """List each row's allowed tokens in this slot; None if a row allows more than `most`."""
        ...

    def allowed(self) -> Bool[Tensor, "M V"]:
        """Return each row's allowed tokens in this slot as a mask over target ids."""
        ...


@dataclass(frozen=True, slots=True)
class BlockRequest:
    """Requests one block for each of B sequences whose context KV is written up to the anchor.

    With least_context_lens the anchors' positions are on the device alone: context_lens are the
    largest that they may be, and least_context_lens the smallest.
    """

    anchor_ids: Int[Tensor, "B"]
    anchor_positions: Int[Tensor, "B"]
    slots: Int[Tensor, "B N"]  # num_slots KV slots from the anchor on: scratch for the block's KV
    page_tables: Sequence[Sequence[int]]
    context_lens: Sequence[int]  # tokens before the anchor, which is its position
    sampling: BlockSampling | None = None  # None: every row takes the argmax
    mask: ChainMask | None = None  # None: every token is allowed
    least_context_lens: Sequence[int] | None = None  # None: context_lens are exact


@dataclass(frozen=True, slots=True)
class DraftBlock:
    """Holds K draft tokens after each anchor."""

    draft_ids: Int[Tensor, "B K"]
    draft_probs: Float[Tensor, "R K V"] | None  # float32, rows as in BlockSampling.rows: the
    # distributions q that their tokens were sampled from
    confidence_logits: Float[Tensor, "B K"] | None  # float32; None without a confidence head
