"""The seam for kernels: what may stand for PyTorch's operators in a draft round.

Whoever wires the draft brings them; PyTorch is the reference, and does what they decline.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from draft.block import BlockRequest
from draft.context.stacked_kv import StackedKV
from draft.network.network import DSparkNetwork
from kv_pool import KVPool


@dataclass(frozen=True, slots=True)
class BlockPass:
    """As far as a kernel came with a draft pass.

    hidden and base_logits may be buffers of the kernel: they are true until its next call.
    """

    hidden: Float[Tensor, "B N E"]  # of every slot, after the final norm
    base_logits: Float[Tensor, "B K Vd"]  # of the predicting slots
    draft_ids: Int[Tensor, "B K"] | None  # None: the chain is still to do
    confidence_logits: Float[Tensor, "B K"] | None


@runtime_checkable
class BlockKernel(Protocol):
    """Runs draft passes for one network over one pool."""

    @property
    def reason(self) -> str | None:
        """Why it declines every request for now; None while it does not."""
        ...

    def run(self, request: BlockRequest) -> BlockPass | None:
        """The pass, with its tokens where every row takes the argmax, masks left aside.

        None: do it without me.

        What a row gets does not depend on the other rows.
        """
        ...


@runtime_checkable
class ContextKernel(Protocol):
    """Writes context keys and values in the stacked form."""

    name: str

    def write_context_kv(
        self,
        network: DSparkNetwork,
        stacked: StackedKV,
        pool: KVPool,
        aux_hidden: Float[Tensor, "N A"],
        positions: Int[Tensor, "N"],
        slots: Int[Tensor, "N"],
    ) -> bool:
        """Write as ContextKVWriter.write_context_kv does. False: declined, nothing written."""
        ...
