"""Linear layers of few rows, straight from PyTorch's own weights."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn

from draft import LinearFunction, widening_linear
from engine.native.compiling import Kernels


def native_linear(kernels: Kernels, *, max_rows: int, num_threads: int) -> LinearFunction:
    """A stand-in for widening_linear that reads the weight once for up to max_rows rows.

    More rows than that, and whatever is not a contiguous product of float32 with a weight that
    there is a kernel for, go to PyTorch.
    """

    def linear(
        x: Float[Tensor, "*T K"], weight: Float[Tensor, "N K"], bias: Float[Tensor, " N"] | None
    ) -> Float[Tensor, "*T N"]:
        num_columns, depth = weight.shape
        num_rows = x.numel() // depth
        kernel = kernels.linear.get(weight.dtype)
        is_ours = x.dtype == torch.float32 and _is_plain(x) and _is_plain(weight)
        if kernel is None or num_rows > max_rows or not is_ours:
            return widening_linear(x, weight, bias)
        y = torch.empty(*x.shape[:-1], num_columns)
        kernel(
            x.data_ptr(),
            weight.data_ptr(),
            None if bias is None else bias.data_ptr(),
            y.data_ptr(),
            num_rows,
            depth,
            num_columns,
            num_threads,
        )
        return y

    return linear


def speed_up(module: nn.Module, linear: LinearFunction) -> int:
    """Make every plain nn.Linear inside use `linear`; how many there were.

    The layers stay what they are, parameters and all: only their `forward` is another one.
    """
    found = [m for m in module.modules() if type(m) is nn.Linear]
    for layer in found:
        layer.__dict__["forward"] = _forward_of(layer, linear)
    return len(found)


@contextmanager
def as_loaded(module: nn.Module) -> Iterator[None]:
    """Within the block PyTorch computes every layer's product; afterwards as before."""
    others = [
        (layer, layer.__dict__["forward"])
        for layer in module.modules()
        if type(layer) is nn.Linear and "forward" in layer.__dict__
    ]
    for layer, _ in others:
        layer.__dict__["forward"] = _forward_of(layer, widening_linear)
    try:
        yield
    finally:
        for layer, forward in others:
            layer.__dict__["forward"] = forward


def _forward_of(layer: nn.Linear, linear: LinearFunction) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        return linear(x, layer.weight, layer.bias)

    return forward


def _is_plain(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.requires_grad
