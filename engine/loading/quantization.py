"""Quantises a loaded target's matrices to int8 (`model.quantization`)."""

from dataclasses import replace

import torch
from torch import nn

from draft.network.int8_linear import Int8Linear
from engine.config import EngineConfig
from engine.cpu_kernels.target_layers import why_unsupported
from engine.errors import LoadError
from engine.loading.target import LoadedTarget
from engine.runner.target_model import DecoderParts

_DTYPES = (torch.float32, torch.bfloat16)


def quantise(config: EngineConfig, target: LoadedTarget, device: torch.device) -> LoadedTarget:
    """Replace the matrices of the target's layers and head by int8 ones, if the config demands it.

    Changes the model in place, and returns a target that is quantised already as it is. The
    embedding is not quantised: a step reads single rows of it.

    Raises LoadError, before any change, for a target or a device without int8 support.
    """
    if config.quantization == "none":
        return target
    reason = _why_not(target, device)
    if reason is not None:
        raise LoadError(
            f"model.quantization: found {config.quantization}, but {reason}; accepted here: none"
        )
    if _is_quantised(target):
        return target
    for layer in target.parts.layers:
        for parent in list(layer.modules()):
            for name, child in list(parent.named_children()):
                if type(child) is nn.Linear:
                    setattr(parent, name, Int8Linear.of(child))
    head = target.parts.lm_head
    if type(head) is nn.Linear:
        target.model.set_output_embeddings(Int8Linear.of(head))  # type: ignore[operator]
    return replace(target, parts=DecoderParts.of(target.model))


def _is_quantised(target: LoadedTarget) -> bool:
    modules = [m for part in (*target.parts.layers, target.parts.lm_head) for m in part.modules()]
    return not any(type(m) is nn.Linear for m in modules)


def _why_not(target: LoadedTarget, device: torch.device) -> str | None:
    if device.type != "cpu":
        return f"the device is {device.type}, and int8 is for the CPU"
    if target.dtype not in _DTYPES:
        return f"model.dtype is {str(target.dtype).removeprefix('torch.')}, not float32 or bfloat16"
    return why_unsupported(target.model)
