"""In which precision a draft's matrices lie in memory."""

import torch

from draft import DSparkNetwork, widening_linear
from draft.network.matrices import cast_matrices, is_lossless, widen_other_parameters
from engine.config import EngineConfig
from engine.cpu_kernels.linear import speed_up
from engine.cpu_kernels.setup import Native
from engine.errors import LoadError

_NARROW = torch.bfloat16


def choose_precision(
    config: EngineConfig,
    network: DSparkNetwork,
    *,
    native: Native | None,
    device: torch.device,
) -> None:
    """Hold the draft's matrices as speculative.draft_dtype says, and make its layers widen them.

    auto narrows beside a float32 target where there are native kernels to read them and the
    checkpoint's own matrices lose nothing. Beside a bfloat16 target such kernels compute in
    float32, from the same bfloat16 matrices. Raises LoadError when the setting cannot be had.
    """
    dtype = _dtype(config, network, has_kernels=native is not None)
    if dtype != network.dtype and (network.dtype != torch.float32 or device.type != "cpu"):
        raise LoadError(
            f"speculative.draft_dtype is {config.draft_dtype!r}; beside a target in "
            f"{_name(network.dtype)} on {device.type} accepted is auto (bfloat16 matrices beside "
            "a float32 target are for the CPU)"
        )
    cast_matrices(network, dtype)
    if native is not None and dtype == _NARROW:
        widen_other_parameters(network)
    speed_up(network, native.linear if native is not None else widening_linear)


def _dtype(config: EngineConfig, network: DSparkNetwork, *, has_kernels: bool) -> torch.dtype:
    if config.draft_dtype != "auto":
        dtype: torch.dtype = getattr(torch, config.draft_dtype)
        return dtype
    can_narrow = has_kernels and network.dtype == torch.float32
    return _NARROW if can_narrow and is_lossless(network, _NARROW) else network.dtype


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
