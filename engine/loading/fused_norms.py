"""Root-mean-square norms of a target by one kernel each, where a device waits for launches.

transformers writes a norm as eight operations, and a decoder layer has two to four norms. At small
batches a GPU is busy with starting kernels: of those of a recorded pass norms are half. PyTorch has
one kernel for all eight on CUDA.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_NAME = "RMSNorm"  # how transformers' classes end
_EPSILONS = ("variance_epsilon", "eps")
# Roundings of the module's own dtype: it rounds before it multiplies by the weight, we do not. In
# float32 it is the order of a sum that differs.
_ROUNDINGS = 2
_LEAST = 1e-5


@dataclass(frozen=True, slots=True)
class FusedNorm:
    """What stands for a module's `forward`. The weight is the module's own, whatever it becomes."""

    module: nn.Module
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        weight = cast(Tensor, self.module.weight)
        return F.rms_norm(x, weight.shape, weight, self.eps)


@torch.no_grad()
def fuse_norms(model: nn.Module) -> int:
    """Let every module that is such a norm, and says the same fused, compute that way; how many."""
    fused = 0
    for module in model.modules():
        norm = _fused(module)
        if norm is not None and _agrees(module, norm):
            module.__dict__["forward"] = norm
            fused += 1
    return fused


@contextmanager
def norms_as_loaded(model: nn.Module) -> Iterator[None]:
    """Within the block norms compute as transformers wrote them."""
    fused = [m for m in model.modules() if isinstance(m.__dict__.get("forward"), FusedNorm)]
    norms = [(module, module.__dict__.pop("forward")) for module in fused]
    try:
        yield
    finally:
        for module, norm in norms:
            module.__dict__["forward"] = norm


def _fused(module: nn.Module) -> FusedNorm | None:
    """None for what is no such norm, or is fused already."""
    is_named_so = type(module).__name__.endswith(_NAME) and not isinstance(module, nn.RMSNorm)
    if not is_named_so or "forward" in module.__dict__:
        return None
    names = [name for name, _ in module.named_parameters()]
    eps = next((getattr(module, name) for name in _EPSILONS if hasattr(module, name)), None)
    if names != ["weight"] or not isinstance(eps, float):
        return None
    return FusedNorm(module, eps)


def _agrees(module: nn.Module, norm: FusedNorm) -> bool:
    """On a few rows. One that adds 1 to its weight, as some do, is far off."""
    weight = module.get_parameter("weight")
    if weight.ndim != 1 or not weight.is_floating_point():
        return False
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(4, len(weight), generator=generator).to(weight.device, weight.dtype)
    found, expected = norm(rows), module(rows)
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    allowed = max(_ROUNDINGS * torch.finfo(weight.dtype).eps, _LEAST)
    return bool(torch.allclose(found.float(), expected.float(), rtol=allowed, atol=1e-6))
