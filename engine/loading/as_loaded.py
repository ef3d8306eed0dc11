"""Restores a model's unmodified computation temporarily."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from draft import widening_linear
from draft.network.int8_linear import Int8Linear, product_by_pytorch
from engine.cpu_kernels.linear import forward_with
from engine.loading.fused_norms import norms_as_loaded


@contextmanager
def as_loaded(module: nn.Module) -> Iterator[None]:
    """Run matrix products and norms as they were loaded, by PyTorch, within the block."""
    replaced = [
        (layer, layer.__dict__["forward"])
        for layer in module.modules()
        if type(layer) is nn.Linear and "forward" in layer.__dict__
    ]
    quantised = [(m, m.product) for m in module.modules() if type(m) is Int8Linear]
    for layer, _ in replaced:
        layer.__dict__["forward"] = forward_with(layer, widening_linear)
    for narrow, _ in quantised:
        narrow.product = product_by_pytorch
    try:
        with norms_as_loaded(module):
            yield
    finally:
        for narrow, product in quantised:
            narrow.product = product
        for layer, forward in replaced:
            layer.__dict__["forward"] = forward
