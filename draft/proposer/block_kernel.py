"""Defines the interface of kernels that run a draft pass in place of PyTorch.

A kernel may decline a pass; PyTorch, the reference, then computes it.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from draft.proposer.block import BlockRequest


@dataclass(frozen=True, slots=True)
class BlockPass:
    """Holds the result of a draft pass, with or without its draft tokens.

    hidden and base_logits may be buffers of the kernel: they are valid until its next call.
    """

    hidden: Float[Tensor, "B N E"]  # of every slot, after the final norm
    base_logits: Float[Tensor, "B K Vd"]  # of the predicting slots
    draft_ids: Int[Tensor, "B K"] | None  # None: not yet sampled
    confidence_logits: Float[Tensor, "B K"] | None


@runtime_checkable
class BlockKernel(Protocol):
    """Runs draft passes for one network over one pool."""

    @property
    def reason(self) -> str | None:
        """Return why the kernel currently declines every request; None if it does not."""
        ...

    def run(self, request: BlockRequest) -> BlockPass | None:
        """Run the pass. Greedy batches also get their draft tokens, ignoring any mask.

        Returns None if it declines the request. A row's result is independent of other rows.
        """
        ...
