"""The kernels compile for Hopper on a machine without a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

STORE = {
    "module": "draft.triton_context",
    "kernel": "_store_kernel",
    "types": {
        "product": "*bf16",
        "positions": "*i64",
        "slots": "*i64",
        "norm": "*bf16",
        "factors": "*fp32",
        "keys": "*bf16",
        "values": "*bf16",
        "num_slots": "i32",
        "eps": "fp32",
    },
    "constants": {
        "L": 5,
        "H": 8,
        "HALF": 64,
        "BLOCK_H": 8,
        "BLOCK_HALF": 64,
    },
}


def compiled_bytes(kernel: dict[str, object]) -> int:
    run = subprocess.run(
        [sys.executable, "-m", "tests.draft.compile_for_hopper", json.dumps(kernel)],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return int(run.stdout)


def test_the_fused_store_compiles_for_the_released_draft_shape() -> None:
    assert compiled_bytes(STORE) > 0
