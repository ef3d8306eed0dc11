"""Compiles the kernels of real launches for devices that need not be there.

A program apart from pytest: there kernels are interpreted, and what is interpreted cannot be
compiled. Its argument is a JSON list of cases, [{"name": ..., "capability": 90, ...}]; it prints a
JSON list of compiled kernels. Launches get meta tensors, and stop after the compilation.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from draft.context.triton_context import store_stacked
from kv_pool import AttentionOptions
from kv_pool.attention.triton_attention import DeviceLimits, TritonAttention

META = torch.device("meta")
KIB = 1024
# Bytes of shared memory that a program may have, and multiprocessors, by compute capability.
LIMITS = {
    80: DeviceLimits(163 * KIB, 108),
    86: DeviceLimits(99 * KIB, 84),
    89: DeviceLimits(99 * KIB, 128),
    90: DeviceLimits(227 * KIB, 132),
    100: DeviceLimits(227 * KIB, 148),
    120: DeviceLimits(99 * KIB, 170),
}


class _Device:
    """Replaces Triton's driver: names the device that kernels are compiled for."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_device(self) -> int:
        return self._capability

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._capability, 32)


def compiled(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Launch what a case describes; return the kernels that this compiled."""
    found: list[dict[str, Any]] = []
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        found.append(
            {
                "kernel": self.fn.__name__,
                "shared": kernel.metadata.shared,
                "cubin": len(kernel.asm["cubin"]),
                "limit": LIMITS[case["capability"]].shared_bytes,
            }
        )
        return kernel

    triton.runtime.driver.set_active(_Device(case["capability"]))  # type: ignore[arg-type]
    with patch.object(JITFunction, "run", compile_only):
        _LAUNCHES[case["launch"]](case)
    return found


def _attend(case: Mapping[str, Any]) -> None:
    """Launch one layer's attention; see TritonAttention for the fields."""
    dtype, heads, kv_heads = getattr(torch, case["dtype"]), case["heads"], case["kv_heads"]
    page, query_len, kv_len = 16, case["query_len"], case["kv_len"]
    backend = TritonAttention(page_size=page, device=META, limits=LIMITS[case["capability"]])
    plan = backend.plan(
        query_lens=[query_len],
        kv_lens=[kv_len],
        page_tables=[list(range(-(-kv_len // page)))],
        causal=case["causal"],
    )
    keys = torch.empty(kv_len, kv_heads, case["key_dim"], dtype=dtype, device=META)
    plan.attend(
        torch.empty(query_len, heads, case["key_dim"], dtype=dtype, device=META),
        keys,
        torch.empty(kv_len, kv_heads, case["value_dim"], dtype=dtype, device=META),
        AttentionOptions(
            scale=0.1,
            window=case["window"],
            softcap=case["softcap"],
            sinks=torch.empty(heads, dtype=dtype, device=META) if case["sinks"] else None,
        ),
    )


def _store(case: Mapping[str, Any]) -> None:
    """Launch a context write; see store_stacked for the fields."""
    dtype, rows = getattr(torch, case["dtype"]), 8
    layers, heads, dim = case["layers"], case["kv_heads"], case["key_dim"]

    def empty(*shape: int, of: torch.dtype = dtype) -> Tensor:
        return torch.empty(shape, dtype=of, device=META)

    store_stacked(
        empty(rows, layers * case["parts"] * heads * dim),
        empty(rows, of=torch.long),
        empty(rows, of=torch.long),
        norm=empty(layers, 1, dim),
        eps=1e-6,
        factors=empty(4096, 2, dim, of=torch.float32),
        keys=empty(layers, 64, heads, dim),
        values=empty(layers, 64, heads, dim),
        norms_values=case["parts"] == 1,
    )


_LAUNCHES = {"attend": _attend, "store": _store}

if __name__ == "__main__":
    print(json.dumps([compiled(case) for case in json.loads(sys.argv[1])]))  # noqa: T201
