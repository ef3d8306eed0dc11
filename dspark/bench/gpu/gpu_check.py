"""Runs the sections of `dspark bench gpu` and reports their checks and tables."""

import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from draft.atomic_write import write_text
from dspark.bench.gpu.aims import aims
from dspark.bench.gpu.results import Check, Found, Table, catch_errors
from dspark.bench.gpu.sections import SECTIONS
from dspark.bench.report.columns import columns
from engine.platform.host import installed_version
from server.settings.schema import SettingsError

_PACKAGES = ("triton", "flashinfer-python", "transformers", "numpy")
_SECTION_TIMEOUT_S = 180.0  # of a section in a separate process


@dataclass(frozen=True, slots=True)
class GPUCheckOptions:
    """What to run; the fields are the flags of `dspark bench gpu`."""

    device: str
    tiny: bool
    only: tuple[str, ...]  # section names; empty: all
    minutes: float
    apart: bool | None  # None: on a GPU
    json: Path | None


def run_gpu_check(options: GPUCheckOptions) -> int:
    """Run the sections; return the exit code, 1 if a check failed or a section is missing.

    Raises SettingsError without the CUDA device that the options name.
    """
    device = torch.device(options.device)
    is_cuda = device.type == "cuda"
    if is_cuda and not torch.cuda.is_available():
        raise SettingsError(
            "--device: found cuda, but torch finds no CUDA device; accepted here: cpu, with --tiny "
            "for a dry run"
        )
    report = Report(options.json, _circumstances(device))
    apart = is_cuda if options.apart is None else options.apart
    deadline = report.started + 60 * options.minutes
    for name in options.only or SECTIONS:
        started = time.perf_counter()
        left = deadline - started
        if left <= 0:
            report.add(
                Check(name, False, f"left out: {options.minutes:g} minutes are over"), show=True
            )
        elif apart:
            for found in _in_a_process(name, options, seconds=min(left, _SECTION_TIMEOUT_S)):
                report.add(found)
        else:
            for found in catch_errors(name, lambda name=name: SECTIONS[name](device, options.tiny)):  # type: ignore[misc]
                report.add(found, show=True)
        report.values["sections"][name] = round(time.perf_counter() - started, 1)
    if not options.only:
        for found in aims(report.values["tables"]):
            report.add(found, show=True)
    return report.close()


class Report:
    """Prints results and keeps a JSON file of them that is complete after each."""

    def __init__(self, path: Path | None, circumstances: Mapping[str, object]) -> None:
        self.started = time.perf_counter()
        self._path = path
        self._num_failed = 0
        self.values: dict[str, Any] = {
            "circumstances": dict(circumstances),
            "checks": [],
            "tables": {},
            "sections": {},
        }

    def add(self, found: Check | Table, *, show: bool = False) -> None:
        """Record a result; print it if `show`."""
        if isinstance(found, Table):
            self.values["tables"][found.title] = found.rows
            line = _text(found)
        else:
            self.values["checks"].append(asdict(found))
            self._num_failed += not found.passed
            line = f"{'ok  ' if found.passed else 'FAIL'}  {found.name}: {found.detail}"
        if show:
            print(line, flush=True)
        self._write()

    def close(self) -> int:
        """Write the file a last time; return the exit code."""
        self._write()
        print(f"{self._num_failed} checks failed; {time.perf_counter() - self.started:.0f} s")
        return min(self._num_failed, 1)

    def _write(self) -> None:
        self.values["seconds"] = round(time.perf_counter() - self.started, 1)
        if self._path is not None:
            write_text(self._path, json.dumps(self.values, indent=1))


def _in_a_process(name: str, options: GPUCheckOptions, *, seconds: float) -> Found:
    """Yield the results that a section's process writes within `seconds`; it prints them itself."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        command = [sys.executable, "-m", "dspark", "bench", "gpu", "--together", "--only", name]
        command += ["--device", options.device, "--json", str(path), *["--tiny"][: options.tiny]]
        try:
            code: int | None = subprocess.run(command, timeout=seconds, check=False).returncode
        except subprocess.TimeoutExpired:
            code = None
        if path.exists():
            values = json.loads(path.read_text(encoding="utf-8"))
            yield from (Check(**check) for check in values["checks"])
            yield from (Table(title, rows) for title, rows in values["tables"].items())
    if code not in (0, 1):
        how = "did not end in time" if code is None else f"ended with code {code}"
        print(f"FAIL  {name}: its process {how}", flush=True)
        yield Check(name, False, f"its process {how}")


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
    names = tuple(table.rows[0])
    rows = [tuple(_cell(row.get(name)) for name in names) for row in table.rows]
    return "\n".join(["", table.title, *columns([names, *rows])])


def _cell(value: float | str | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
