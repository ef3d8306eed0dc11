"""Checks and measures the CUDA path on one device, with random models: nothing is fetched.

    python -m benchmarks.gpu_check --json gpu.json          under 8 minutes on one H200
    python -m benchmarks.gpu_check --tiny --device cpu      the same way, in small, anywhere

First what must be right: attention, context, graphs and greedy text against their references.
Then what it takes: see benchmarks/README.md for how to read the tables. Exits with 1 when a check
fails, and with what was measured in the file all the same.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.checks import run_checks
from benchmarks.gpu.measures import Table, run_measures


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    device = torch.device(asked.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("torch finds no CUDA device; --tiny --device cpu takes the same way in small")
        return 2
    started = time.perf_counter()
    told: dict[str, Any] = {"circumstances": _circumstances(device), "checks": [], "tables": {}}
    failed = 0
    for check in run_checks(device, tiny=asked.tiny):
        print(f"{'ok  ' if check.passed else 'FAIL'}  {check.name}: {check.detail}", flush=True)
        told["checks"].append({"name": check.name, "passed": check.passed, "detail": check.detail})
        failed += not check.passed
        _write(asked.json, told, started)
    if not asked.checks_only:
        for table in run_measures(device, tiny=asked.tiny):
            print(_text(table), flush=True)
            told["tables"][table.title] = table.rows
            _write(asked.json, told, started)
    print(f"{failed} checks failed; {time.perf_counter() - started:.0f} s")
    return min(failed, 1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Check and measure the CUDA path.")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="tiny models: a dry run")
    parser.add_argument("--checks-only", action="store_true", help="measure nothing")
    parser.add_argument("--json", type=Path, help="where to write everything")
    return parser


def _circumstances(device: torch.device) -> dict[str, str | None]:
    is_cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if is_cuda else "cpu",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


def _write(path: Path | None, told: dict[str, Any], started: float) -> None:
    """After every step, so that a run that is cut off leaves what it had."""
    if path is not None:
        told["seconds"] = round(time.perf_counter() - started, 1)
        path.write_text(json.dumps(told, indent=1))


def _text(table: Table) -> str:
    columns = list(table.rows[0])
    cells = [[_cell(row.get(column)) for column in columns] for row in table.rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in (columns, *cells)
    ]
    return "\n".join(["", table.title, *lines])


def _cell(value: float | str | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
