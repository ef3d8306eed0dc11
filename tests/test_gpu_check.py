"""The program that checks a GPU runs the same way on a CPU, in small."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.gpu_check import main


def test_the_whole_program_runs_in_small_and_every_check_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "told.json"
    assert main(["--tiny", "--device", "cpu", "--json", str(path)]) == 0
    out = capsys.readouterr().out
    assert "FAIL" not in out
    assert "0 checks failed" in out
    told = json.loads(path.read_text())
    names = [check["name"] for check in told["checks"]]
    assert "greedy text, speculation on, graphs auto" in names
    assert "context, fused against per layer, torch.bfloat16" in names
    rows = told["tables"]["context write"]
    assert [row["tokens"] for row in rows] == [1, 8]
    assert all(row[f"{path}_ms"] > 0 for row in rows for path in ("per_layer", "stacked", "fused"))
    lengths = [row["accept_length"] for row in told["tables"]["speed by accept length"]]
    assert lengths == [float(n + 1) for n in range(8)]
    assert all(row["share_of_copy"] > 0 for row in told["tables"]["verify pass"])
    paths = [row["path"] for row in told["tables"]["stacked against per layer, end to end"]]
    assert paths == ["stacked", "per_layer"] * 2


def test_without_a_device_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([]) == 2
    assert "no CUDA device" in capsys.readouterr().out
