"""Logs each step and validation of a training as a JSON line."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draft.atomic_write import append_line, whole_file
from dspark.training.run.trainer import StepReport
from dspark.training.run.validation import Validation


class TrainingLog:
    """training.jsonl: {"kind": "step" or "validation", "step": n, ...}."""

    def __init__(self, *, path: Path) -> None:
        self._path = path

    def rewind(self, step: int) -> None:
        """Remove entries after this step; a resumed training writes them again."""
        if not self._path.exists():
            return
        lines = [json.dumps(entry) for entry in self.entries() if entry["step"] <= step]
        with whole_file(self._path) as partial:
            partial.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def step(self, report: StepReport) -> None:
        self._append({"kind": "step", **dataclasses.asdict(report)})

    def validation(self, step: int, found: Validation) -> None:
        self._append({"kind": "validation", "step": step, **dataclasses.asdict(found)})

    def entries(self) -> list[dict[str, Any]]:
        """Return all complete lines."""
        entries = []
        for line in self._path.read_text(encoding="utf-8").splitlines():
            try:
                entries.append(json.loads(line))
            except ValueError:  # the last line of an interrupted run
                continue
        return entries

    def _append(self, entry: Mapping[str, object]) -> None:
        append_line(self._path, json.dumps(entry))
