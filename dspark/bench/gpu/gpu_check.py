"""Checks and measures the CUDA path on one device, with random models: nothing is fetched.

    python -m dspark.bench.gpu.gpu_check --json gpu.json          under 8 minutes on one H200
    python -m dspark.bench.gpu.gpu_check --tiny --device cpu      the same way, in small, anywhere

First what must be right: attention, context, graphs and greedy text against their references.
Then what it takes: see benchmarks/README.md for how to read the tables. On a GPU every section runs
in a process of its own, so that one that breaks, or hangs, takes nothing from the others; the file
holds what there is after each result. Exits with 1 when a check fails or a section is missing.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from dspark.bench.gpu.aims import aims
from dspark.bench.gpu.results import Check, Found, Table, kept
from dspark.bench.gpu.sections import SECTIONS
from engine.platform.host import installed_version

_PACKAGES = ("triton", "flashinfer-python", "transformers", "numpy")
_MINUTES = 7.5
_LONGEST = 180.0  # seconds of a section in a process of its own; whatever takes longer hangs


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    device = torch.device(asked.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("torch finds no CUDA device; --tiny --device cpu takes the same way in small")
        return 2
    report = Report(asked.json, _circumstances(device))
    names = asked.only or list(SECTIONS)
    apart = asked.apart if asked.apart is not None else device.type == "cuda"
    deadline = report.begun + 60 * asked.minutes
    for name in names:
        left = deadline - time.perf_counter()
        begun = time.perf_counter()
        if left <= 0:
            late = f"left out: {asked.minutes:g} minutes are over"
            report.add(Check(name, False, late), show=True)
        elif apart:
            for found in _in_a_process(name, asked, seconds=min(left, _LONGEST)):
                report.add(found)
        else:
            for found in kept(name, lambda name=name: SECTIONS[name](device, asked.tiny)):  # type: ignore[misc]
                report.add(found, show=True)
        report.told["sections"][name] = round(time.perf_counter() - begun, 1)
    if not asked.only:
        for found in aims(report.told["tables"]):
            report.add(found, show=True)
    return report.close()


class Report:
    """Everything that is found, on the screen and in a file that is true at any time."""

    def __init__(self, path: Path | None, circumstances: Mapping[str, object]) -> None:
        self.begun = time.perf_counter()
        self._path = path
        self._failed = 0
        self.told: dict[str, Any] = {
            "circumstances": dict(circumstances),
            "checks": [],
            "tables": {},
            "sections": {},
        }

    def add(self, found: Check | Table, *, show: bool = False) -> None:
        """show: print it as well."""
        if isinstance(found, Table):
            self.told["tables"][found.title] = found.rows
            if show:
                print(_text(found), flush=True)
        else:
            self.told["checks"].append(asdict(found))
            self._failed += not found.passed
            if show:
                state = "ok  " if found.passed else "FAIL"
                print(f"{state}  {found.name}: {found.detail}", flush=True)
        self._write()

    def close(self) -> int:
        self._write()
        print(f"{self._failed} checks failed; {self._seconds():.0f} s")
        return min(self._failed, 1)

    def _seconds(self) -> float:
        return time.perf_counter() - self.begun

    def _write(self) -> None:
        """Whole or not at all: whoever is stopped leaves the state before."""
        if self._path is None:
            return
        self.told["seconds"] = round(self._seconds(), 1)
        fresh = self._path.with_name(self._path.name + ".new")
        fresh.write_text(json.dumps(self.told, indent=1))
        fresh.replace(self._path)


def _in_a_process(name: str, asked: argparse.Namespace, *, seconds: float) -> Found:
    """A section's results, as far as it came within so many seconds; it prints them itself."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        command = [sys.executable, "-m", "dspark.bench.gpu.gpu_check", "--together", "--only", name]
        command += ["--device", asked.device, "--json", str(path), *["--tiny"][: asked.tiny]]
        try:
            code: int | None = subprocess.run(command, timeout=seconds, check=False).returncode
        except subprocess.TimeoutExpired:
            code = None
        yield from _read(path)
    if code not in (0, 1):
        how = "did not end in time" if code is None else f"ended with code {code}"
        print(f"FAIL  {name}: its process {how}", flush=True)
        yield Check(name, False, f"its process {how}")


def _read(path: Path) -> Iterator[Check | Table]:
    if not path.exists():
        return
    told = json.loads(path.read_text())
    for check in told["checks"]:
        yield Check(**check)
    for title, rows in told["tables"].items():
        yield Table(title, rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Check and measure the CUDA path.")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="tiny models: a dry run")
    parser.add_argument(
        "--only", action="append", choices=list(SECTIONS), help="this section; may be repeated"
    )
    parser.add_argument(
        "--minutes", type=float, default=_MINUTES, help="sections not begun by then are left out"
    )
    parser.add_argument(
        "--apart", action="store_true", default=None, help="a process for each section"
    )
    parser.add_argument(
        "--together", dest="apart", action="store_false", help="all in this process"
    )
    parser.add_argument("--json", type=Path, help="where to write everything")
    return parser


def _circumstances(device: torch.device) -> dict[str, object]:
    is_cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if is_cuda else "cpu",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        **{name: installed_version(name) for name in _PACKAGES},
        "date": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
    }


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
