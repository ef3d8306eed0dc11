"""Restores the unmodified computation of a module for the length of a block."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from draft import widening_linear
from engine.cpu_kernels.int8_linear import Int8Linear, product_by_pytorch
from engine.cpu_kernels.linear import forward_with
from engine.loading.fused_norms import norms_as_loaded


@contextmanager
def as_loaded(module: nn.Module) -> Iterator[None]:
    """Within the block PyTorch computes every layer's product, and norms as they were loaded;
    afterwards as before."""
    others = [
        (layer, layer.__dict__["forward"])
        for layer in module.modules()
        if type(layer) is nn.Linear and "forward" in layer.__dict__
    ]
    narrow = [(m, m.product) for m in module.modules() if type(m) is Int8Linear]
    for layer, _ in others:
        layer.__dict__["forward"] = forward_with(layer, widening_linear)
    for quantised, _ in narrow:
        quantised.product = product_by_pytorch
    try:
        with norms_as_loaded(module):
            yield
    finally:
        for quantised, product in narrow:
            quantised.product = product
        for layer, forward in others:
            layer.__dict__["forward"] = forward
