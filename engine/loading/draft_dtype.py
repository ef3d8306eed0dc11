"""Chooses the dtype in which a draft's matrices are stored."""

import torch

from draft import DSparkNetwork, widening_linear
from draft.network.matrices import cast_matrices, is_lossless, widen_other_parameters
from engine.config import EngineConfig
from engine.cpu_kernels.linear import use_linear_kernels
from engine.cpu_kernels.setup import CpuKernels
from engine.errors import LoadError

_NARROW = torch.bfloat16


def set_draft_dtype(
    config: EngineConfig,
    network: DSparkNetwork,
    *,
    cpu_kernels: CpuKernels | None,
    device: torch.device,
) -> None:
    """Store the draft's matrices in speculative.draft_dtype; its layers widen them to compute.

    auto means bfloat16 for a float32 target, if CPU kernels can read it and the checkpoint's values
    are unchanged by it. For a bfloat16 target the CPU kernels compute in float32 from the same
    bfloat16 matrices. Raises LoadError when the setting is not possible.
    """
    dtype = _dtype(config, network, has_kernels=cpu_kernels is not None)
    if dtype != network.dtype and (network.dtype != torch.float32 or device.type != "cpu"):
        raise LoadError(
            f"speculative.draft_dtype: found {config.draft_dtype}; accepted for a target in "
            f"{_name(network.dtype)} on {device.type}: auto (bfloat16 matrices with a float32 "
            "target are for the CPU)"
        )
    cast_matrices(network, dtype)
    if cpu_kernels is not None and dtype == _NARROW:
        widen_other_parameters(network)
    use_linear_kernels(network, cpu_kernels.linear if cpu_kernels is not None else widening_linear)


def _dtype(config: EngineConfig, network: DSparkNetwork, *, has_kernels: bool) -> torch.dtype:
    if config.draft_dtype != "auto":
        dtype: torch.dtype = getattr(torch, config.draft_dtype)
        return dtype
    can_narrow = has_kernels and network.dtype == torch.float32
    return _NARROW if can_narrow and is_lossless(network, _NARROW) else network.dtype


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
