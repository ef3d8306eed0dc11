"""Fuses each RMSNorm of a target into one kernel, to save kernel launches on a GPU.

transformers computes a norm in eight operations, and a decoder layer has two to four norms. At
small batches launches dominate, and half of a captured pass's kernels are norms. PyTorch has one
CUDA kernel for all eight operations.
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
# Allowed difference, in roundings of the module's dtype: the module rounds before it multiplies by
# the weight, the fused kernel after. In float32 the order of a sum differs.
_ROUNDINGS = 2
_LEAST = 1e-5


@dataclass(frozen=True, slots=True)
class FusedNorm:
    """Replaces a norm's `forward`; reads the module's weight at each call."""

    module: nn.Module
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        weight = cast(Tensor, self.module.weight)
        return F.rms_norm(x, weight.shape, weight, self.eps)


@torch.no_grad()
def fuse_norms(model: nn.Module) -> int:
    """Fuse every RMSNorm whose fused result is the same; the number of fused norms."""
    fused = 0
    for module in model.modules():
        norm = _fused(module)
        if norm is not None and _agrees(module, norm):
            module.__dict__["forward"] = norm
            fused += 1
    return fused


@contextmanager
def norms_as_loaded(model: nn.Module) -> Iterator[None]:
    """Compute norms as transformers does within the block."""
    fused = [m for m in model.modules() if isinstance(m.__dict__.get("forward"), FusedNorm)]
    norms = [(module, module.__dict__.pop("forward")) for module in fused]
    try:
        yield
    finally:
        for module, norm in norms:
            module.__dict__["forward"] = norm


def _fused(module: nn.Module) -> FusedNorm | None:
    """The fused form of a module; None for one that is no RMSNorm, or is fused already."""
    is_named_so = type(module).__name__.endswith(_NAME) and not isinstance(module, nn.RMSNorm)
    if not is_named_so or "forward" in module.__dict__:
        return None
    names = [name for name, _ in module.named_parameters()]
    eps = next((getattr(module, name) for name in _EPSILONS if hasattr(module, name)), None)
    if names != ["weight"] or not isinstance(eps, float):
        return None
    return FusedNorm(module, eps)


def _agrees(module: nn.Module, norm: FusedNorm) -> bool:
    """Compare both on a few rows. A norm that multiplies by 1 + weight differs far."""
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
