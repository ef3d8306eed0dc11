"""The kernels of decoder layers compile for Hopper on a machine without a GPU."""

import json
import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

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
    [ADD_AND_NORM, ROTATE, ROTATE_IN_PART, ACTIVATE],
    ids=["add_and_norm", "rotate", "rotate_in_part", "activate"],
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
