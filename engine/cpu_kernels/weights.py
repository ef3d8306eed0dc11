"""Finds the weights of a decoder layer, and checks that kernels can read them."""

from typing import Any

import torch
from torch import Tensor, nn

from draft.network.int8_linear import Int8Linear

_PLAIN_TENSORS: tuple[type[Tensor], ...] = (Tensor, nn.Parameter)  # a quantised one is a subclass


def matrices_of(layer: Any) -> dict[str, nn.Module]:
    """Return the linear layers of a decoder or draft layer, by their names in the kernels."""
    attention, mlp = layer.self_attn, layer.mlp
    return {
        "q": attention.q_proj,
        "k": attention.k_proj,
        "v": attention.v_proj,
        "o": attention.o_proj,
        "gate": mlp.gate_proj,
        "up": mlp.up_proj,
        "down": mlp.down_proj,
    }


def has_bias(layer: nn.Linear | Int8Linear) -> bool:
    return layer.bias is not None


def is_readable(tensor: Tensor, dtype: torch.dtype = torch.float32) -> bool:
    """Whether a kernel for this dtype can read the tensor's memory."""
    is_ours = tensor.dtype == dtype and tensor.device.type == "cpu"
    return is_ours and tensor.is_contiguous() and type(tensor) in _PLAIN_TENSORS
