"""Kernels compile for GPUs on a machine without one, within each device's shared memory."""

import json
import os
import subprocess
import sys
from itertools import product
from typing import Any

import pytest

from tests.support.paths import ROOT

CAPABILITIES = (80, 86, 89, 90, 100, 120)
DTYPES = ("bfloat16", "float16", "float32")


def attention(heads: int, kv_heads: int, dim: int, **options: Any) -> dict[str, Any]:
    """Describe a layer's attention over a prompt of one long tile, whose keys are split."""
    return {
        "launch": "attend",
        "heads": heads,
        "kv_heads": kv_heads,
        "key_dim": dim,
        "value_dim": dim,
        "query_len": 100,
        "kv_len": 3000,
        "causal": True,
        "window": None,
        "softcap": None,
        "sinks": False,
        **options,
    }


def store(layers: int, kv_heads: int, dim: int, *, parts: int = 2) -> dict[str, Any]:
    """Describe a context write; parts: 1 where keys and values share a projection."""
    return {
        "launch": "store",
        "layers": layers,
        "kv_heads": kv_heads,
        "key_dim": dim,
        "parts": parts,
    }


# Layers of the released pairs, targets and drafts. One shape stands for all models that have it.
SHAPES = {
    "Qwen3-4B, 8B, Llama-3-8B": attention(32, 8, 128),
    "Qwen3-14B": attention(40, 8, 128),
    "Llama-3.2-1B": attention(32, 8, 64),
    "Gemma-3-4B": attention(8, 4, 256, window=1024),
    "Gemma-3-12B, Gemma-4": attention(16, 8, 256),
    "Gemma-3-27B": attention(32, 16, 128, window=1024),
    "Gemma-4, whole context": attention(16, 2, 512),
    "gpt-oss": attention(64, 8, 64, window=128, sinks=True),
    "draft of Qwen3": attention(32, 8, 128, causal=False),
    "draft of Gemma": attention(16, 8, 256, causal=False, softcap=30.0),
}
STORES = {
    "draft of Qwen3": store(5, 8, 128),
    "draft of Gemma": store(5, 8, 256),
    "draft of Gemma, shared": store(5, 1, 512, parts=1),
}
# Rows of a tile: a plain round's, a verify window's, a prompt's.
QUERY_LENS = (1, 8, 100)


def compiled(*cases: dict[str, Any]) -> list[list[dict[str, Any]]]:
    run = subprocess.run(
        [sys.executable, "-m", "tests.support.compile_kernels", json.dumps(cases)],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found: list[list[dict[str, Any]]] = json.loads(run.stdout)
    return found


def assert_fits(kernels: list[dict[str, Any]], *names: str) -> None:
    assert [kernel["kernel"] for kernel in kernels] == list(names)
    for kernel in kernels:
        assert kernel["cubin"] > 0
        assert kernel["shared"] <= kernel["limit"], kernel


@pytest.mark.parametrize("capability", [89, 90])
def test_every_kernel_compiles_with_its_largest_tile(capability: int) -> None:
    """In bfloat16 with every option; the largest in bytes are float32's, see verify-cuda."""
    every = {"window": 1024, "softcap": 30.0, "sinks": True}
    cases = (attention(32, 8, 128, **every), store(5, 8, 128))
    found = compiled(*({**c, "capability": capability, "dtype": "bfloat16"} for c in cases))
    assert_fits(found[0], "_attend", "_merge")
    assert_fits(found[1], "_store_kernel")


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_of_the_released_shapes_fits_into_every_device(
    shape: str, capability: int, dtype: str
) -> None:
    case = {**SHAPES[shape], "capability": capability, "dtype": dtype}
    for kernels in compiled(*({**case, "query_len": length} for length in QUERY_LENS)):
        assert_fits(kernels, "_attend", "_merge")


@pytest.mark.cuda
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_context_writes_of_the_released_shapes_fit_into_every_device(capability: int) -> None:
    cases = [
        {**shape, "capability": capability, "dtype": dtype}
        for shape, dtype in product(STORES.values(), DTYPES)
    ]
    for kernels in compiled(*cases):
        assert_fits(kernels, "_store_kernel")
