"""The log of a training: a JSON object a line, one for each step and each validation."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draft.atomic_write import append_line, whole_file
from dspark.training.run.trainer import StepReport
from dspark.training.run.validating import Validation


class Journal:
    """training.jsonl: {"kind": "step" or "validation", "step": n, ...}."""

    def __init__(self, *, path: Path) -> None:
        self._path = path

    def rewind(self, step: int) -> None:
        """Forget what came after this step: a resumed training says it again."""
        if not self._path.exists():
            return
        kept = [json.dumps(entry) for entry in self.entries() if entry["step"] <= step]
        with whole_file(self._path) as partial:
            partial.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")

    def step(self, report: StepReport) -> None:
        self._append({"kind": "step", **dataclasses.asdict(report)})

    def validation(self, step: int, found: Validation) -> None:
        self._append({"kind": "validation", "step": step, **dataclasses.asdict(found)})

    def entries(self) -> list[dict[str, Any]]:
        """Every whole line."""
        entries = []
        for line in self._path.read_text(encoding="utf-8").splitlines():
            try:
                entries.append(json.loads(line))
            except ValueError:  # the last line of a killed run
                continue
        return entries

    def _append(self, entry: Mapping[str, object]) -> None:
        append_line(self._path, json.dumps(entry))
