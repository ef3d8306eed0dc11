"""Defines the interface of kernels that write context KV in place of PyTorch."""

from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from draft.context.stacked_kv import StackedKV
from draft.network.network import DSparkNetwork
from kv_pool import KVPool


@runtime_checkable
class ContextKernel(Protocol):
    """Writes context keys and values of all layers from the stacked weights."""

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
        """Write as ContextKVWriter.write_context_kv does; return False if it wrote nothing."""
        ...
