"""The kernels compile for Hopper on a machine without a GPU."""

import json
import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

STORE = {
    "module": "draft.context.triton_context",
    "kernel": "_store_kernel",
    "types": {
        **dict.fromkeys(["product", "norm", "keys", "values"], "*bf16"),
        **dict.fromkeys(["positions", "slots"], "*i64"),
        "factors": "*fp32",
        "num_slots": "i32",
        "eps": "fp32",
    },
    "constants": {
        "L": 5,
        "PARTS": 2,
        "NORMS_VALUES": False,
        "H": 8,
        "HALF": 64,
        "BLOCK_H": 8,
        "BLOCK_HALF": 64,
    },
}
STORE_SHARED = {
    **STORE,
    "constants": {
        "L": 5,
        "PARTS": 1,
        "NORMS_VALUES": True,
        "H": 1,
        "HALF": 256,
        "BLOCK_H": 1,
        "BLOCK_HALF": 256,
    },
}
ATTEND_TYPES = {
    **dict.fromkeys(["query", "keys", "values"], "*bf16"),
    **dict.fromkeys(["tiles", "starts", "pages", "kv_lens"], "*i32"),
    **dict.fromkeys(["query_stride", "head_stride", "num_queries", "num_tiles"], "i32"),
    **dict.fromkeys(["max_pages", "window", "splits"], "i32"),
    **dict.fromkeys(["scale", "softcap"], "fp32"),
    "sums": "*fp32",
}
ATTEND_CONSTANTS = {
    "CAUSAL": True,
    "HAS_WINDOW": False,
    "HAS_SOFTCAP": False,
    "H": 32,
    "HKV": 8,
    "GROUP": 4,
    "KEYS": 64,
    "PAGE": 16,
    "D": 128,
    "DV": 128,
    "BLOCK_D": 128,
    "BLOCK_DV": 128,
    "WIDE": False,
}
VERIFY = {
    "module": "kv_pool.attention.triton_kernels",
    "kernel": "_attend",
    "types": {**ATTEND_TYPES, "parts": "*fp32"},
    "constants": {**ATTEND_CONSTANTS, "IS_WHOLE": False, "QUERIES": 8, "ROWS": 32},
}
PROMPT = {
    "module": "kv_pool.attention.triton_kernels",
    "kernel": "_attend",
    "types": {**ATTEND_TYPES, "parts": "*bf16", "sums": "*bf16"},
    "constants": {
        **ATTEND_CONSTANTS,
        "HAS_WINDOW": True,
        "HAS_SOFTCAP": True,
        "IS_WHOLE": True,
        "QUERIES": 16,
        "ROWS": 64,
    },
}
COMBINE = {
    "module": "kv_pool.attention.triton_kernels",
    "kernel": "_combine",
    "types": {
        **dict.fromkeys(["parts", "sums", "sinks"], "*fp32"),
        "out": "*bf16",
        **dict.fromkeys(["num_queries", "splits"], "i32"),
    },
    "constants": {
        "HAS_SINKS": True,
        "BLOCK_SPLITS": 16,
        "H": 32,
        "DV": 128,
        "BLOCK_DV": 128,
    },
}


_LAYER = "engine.fused_layers.layer_kernels"
ADD_AND_NORM = {
    "module": _LAYER,
    "kernel": "_add_and_norm",
    "types": {
        **dict.fromkeys(["x", "branch", "out"], "*bf16"),
        **dict.fromkeys(["branch_norm", "norm"], "*fp32"),
        "width": "i32",
        "eps": "fp32",
    },
    "constants": {"HAS_BRANCH": True, "NORMS_BRANCH": True, "NORMS": True, "BLOCK": 4096},
}
ROTATE = {
    "module": _LAYER,
    "kernel": "_rotate_and_store",
    "types": {
        **dict.fromkeys(["product", "out", "keys", "values"], "*bf16"),
        **dict.fromkeys(["norms", "rotary"], "*fp32"),
        **dict.fromkeys(["positions", "slots"], "*i64"),
        "table": "i64",
        "eps": "fp32",
    },
    "constants": {"H": 32, "HKV": 8, "D": 128, "R": 128, "NORMS": True, "BLOCK": 128},
}
ROTATE_IN_PART = {
    **ROTATE,
    "constants": {"H": 32, "HKV": 32, "D": 96, "R": 72, "NORMS": False, "BLOCK": 128},
}
ACTIVATE = {
    "module": _LAYER,
    "kernel": "_activate",
    "types": {"product": "*bf16", "out": "*bf16", "width": "i32"},
    "constants": {"IS_GELU": True, "BLOCK": 1024},
}


@pytest.mark.parametrize(
    "kernel",
    [
        *(STORE, STORE_SHARED, VERIFY, PROMPT, COMBINE),
        *(ADD_AND_NORM, ROTATE, ROTATE_IN_PART, ACTIVATE),
    ],
    ids=[
        *("store", "store_shared", "verify", "prompt", "combine"),
        *("add_and_norm", "rotate", "rotate_in_part", "activate"),
    ],
)
def test_it_compiles_for_the_released_shapes(kernel: dict[str, object]) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.support.compile_for_hopper", json.dumps(kernel)],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 0  # bytes of machine code
