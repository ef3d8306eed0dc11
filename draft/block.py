"""What goes into one draft pass, and what comes out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, slots=True)
class BlockSampling:
    """Which rows of a batch draw their tokens; all others take the argmax."""

    rows: Int[Tensor, "R"]  # indices into the batch, without repetition
    temperatures: Float[Tensor, "R"]  # > 0
    uniforms: Float[Tensor, "R K"]  # float64, in [0, 1)


@runtime_checkable
class ChainMask(Protocol):
    """Which tokens some rows of a batch may say at all, asked while their tokens are picked.

    It stands at one slot after the other. Whoever moves it waits for the device, if the rows'
    tokens lie on one. A row that has said what it may not is past help, and may say anything.
    """

    @property
    def rows(self) -> Int[Tensor, "M"]:
        """Indices into the batch, without repetition."""
        ...

    def stand(self, k: int, previous_ids: Int[Tensor, "M"]) -> None:
        """Go to slot k, for every k in order, once.

        previous_ids are what the rows have said in slot k - 1 (their anchors for k = 0).
        """
        ...

    def allows(self, token_ids: Int[Tensor, "M"]) -> bool:
        """Whether each row may say its one of these tokens in this slot."""
        ...

    def few(self, most: int) -> list[list[int]] | None:
        """All that each row may say in this slot, if none may say more than `most` tokens."""
        ...

    def allowed(self) -> Bool[Tensor, "M V"]:
        """All that each row may say in this slot."""
        ...


@dataclass(frozen=True, slots=True)
class BlockRequest:
    """One draft pass for B sequences, each with its context written up to its anchor."""

    anchor_ids: Int[Tensor, "B"]
    anchor_positions: Int[Tensor, "B"]
    slots: Int[Tensor, "B N"]  # scratch for the block's keys and values, from the anchor on:
    # as many as the drafter's num_slots
    page_tables: Sequence[Sequence[int]]
    context_lens: Sequence[int]  # tokens before the anchor, which is its position
    sampling: BlockSampling | None = None  # None: every row takes the argmax
    mask: ChainMask | None = None  # None: every row may say anything


@dataclass(frozen=True, slots=True)
class DraftBlock:
    """K guesses after each anchor."""

    draft_ids: Int[Tensor, "B K"]
    draft_probs: Float[Tensor, "R K V"] | None  # float32; rows as in BlockSampling.rows: the very
    # distributions that their tokens were drawn from
    confidence_logits: Float[Tensor, "B K"] | None  # float32; None without a confidence head
