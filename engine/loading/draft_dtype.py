"""Chooses the dtype in which a draft's matrices are stored."""

import torch
from torch import nn

from draft import DSparkNetwork, widening_linear
from draft.network.matrices import (
    cast_matrices,
    is_lossless,
    quantise_matrices,
    widen_other_parameters,
)
from engine.config import EngineConfig
from engine.cpu_kernels.linear import use_linear_kernels
from engine.cpu_kernels.setup import CpuKernels
from engine.errors import LoadError

_NARROW = torch.bfloat16
# The dtypes of matrices on a CPU, by the target's.
_ON_CPU = {
    torch.float32: (torch.float32, torch.bfloat16, torch.int8),
    torch.bfloat16: (torch.bfloat16, torch.int8),
}


def set_draft_dtype(
    config: EngineConfig,
    network: DSparkNetwork,
    *,
    target_head: nn.Module,
    cpu_kernels: CpuKernels | None,
    device: torch.device,
) -> None:
    """Store the draft's matrices in speculative.draft_dtype; products have the activations' dtype.

    With CPU kernels, auto means int8 for an int8 target, and bfloat16 for a float32 target if the
    checkpoint's values are unchanged by it. For a bfloat16 target the CPU kernels compute in
    float32. An int8 head with the rows of `target_head` becomes that module.

    Raises LoadError when the setting is not possible.
    """
    dtype = _dtype(config, network, has_kernels=cpu_kernels is not None)
    possible = _ON_CPU.get(network.dtype, ()) if device.type == "cpu" else ()
    if dtype != network.dtype and dtype not in possible:
        raise LoadError(
            f"speculative.draft_dtype: found {config.draft_dtype}; accepted for a target in "
            f"{_name(network.dtype)} on {device.type}: {_accepted(possible)} (int8 matrices, and "
            "bfloat16 ones with a float32 target, are for the CPU)"
        )
    if dtype == torch.int8:
        quantise_matrices(network, target_head=target_head)
    else:
        cast_matrices(network, dtype)
    if cpu_kernels is not None and dtype != torch.float32:
        widen_other_parameters(network)
    if cpu_kernels is None:
        use_linear_kernels(network, widening_linear)
    else:
        use_linear_kernels(network, cpu_kernels.linear, cpu_kernels.int8_product)


def _dtype(config: EngineConfig, network: DSparkNetwork, *, has_kernels: bool) -> torch.dtype:
    if config.draft_dtype != "auto":
        dtype: torch.dtype = getattr(torch, config.draft_dtype)
        return dtype
    if has_kernels and config.quantization == "int8":
        return torch.int8
    can_narrow = has_kernels and network.dtype == torch.float32
    return _NARROW if can_narrow and is_lossless(network, _NARROW) else network.dtype


def _accepted(possible: tuple[torch.dtype, ...]) -> str:
    return ", ".join(["auto", *map(_name, possible)])


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
