"""Computes linear layers by the CPU kernels, from PyTorch's weights without packing them."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from draft import LinearFunction, widening_linear
from draft.network.int8_linear import Int8Linear, Int8Product, product_by_pytorch
from engine.cpu_kernels.compiling import KernelLibrary


def cpu_linear(kernels: KernelLibrary, *, max_rows: int, num_threads: int) -> LinearFunction:
    """Make a replacement of widening_linear that reads the weight once for up to max_rows rows.

    PyTorch computes products of more rows, of other dtypes and of tensors that are not contiguous.
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
            None,
            None if bias is None else bias.data_ptr(),
            y.data_ptr(),
            num_rows,
            depth,
            num_columns,
            num_threads,
        )
        return y

    return linear


def cpu_int8_product(kernels: KernelLibrary, *, num_threads: int) -> Int8Product:
    """Make a replacement of product_by_pytorch that reads the weight without widening it."""

    kernel = kernels.linear[torch.int8]

    def product(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
        if not all(map(_is_plain, (x, weight, scale))):
            return product_by_pytorch(x, weight, scale, bias)
        num_columns, depth = weight.shape
        y = torch.empty(*x.shape[:-1], num_columns)
        kernel(
            x.data_ptr(),
            weight.data_ptr(),
            scale.data_ptr(),
            None if bias is None else bias.data_ptr(),
            y.data_ptr(),
            x.numel() // depth,
            depth,
            num_columns,
            num_threads,
        )
        return y

    return product


def use_linear_kernels(
    module: nn.Module, linear: LinearFunction, int8_product: Int8Product | None = None
) -> int:
    """Make every plain nn.Linear use `linear`, and every Int8Linear `int8_product`.

    The layers keep their types and parameters; only their forward functions change. Returns the
    number of layers.
    """
    found = [m for m in module.modules() if type(m) is nn.Linear]
    for layer in found:
        layer.__dict__["forward"] = forward_with(layer, linear)
    narrow = [m for m in module.modules() if type(m) is Int8Linear] if int8_product else []
    for other in narrow:
        assert int8_product is not None
        other.product = int8_product
    return len(found) + len(narrow)


def forward_with(layer: nn.Linear, linear: LinearFunction) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        return linear(x, layer.weight, layer.bias)

    return forward


def _is_plain(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.requires_grad
