"""`dspark bench gpu` runs the same way on a CPU with tiny models."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from draft import BlockRequest, DraftBlock
from dspark.bench.gpu import checks, gpu_check
from dspark.bench.gpu.aims import aims
from dspark.bench.gpu.replays import graphs
from dspark.bench.gpu.results import Check, Found, Row, Table, catch_errors, table
from dspark.bench.gpu.sections import SECTIONS
from dspark.bench.gpu.timing import Stopwatch, in_turns
from dspark.cli.main import main
from engine.cuda_graphs import GraphedProposer
from kv_pool import ReferenceAttention
from kv_pool.attention.flashinfer import FlashInferAttention
from kv_pool.attention.flashinfer_workspace import Workspace
from tests.support.kv_pool.fake_flashinfer import FakeWrapper

CPU = torch.device("cpu")


def run(*flags: str, json_file: Path | None = None) -> int:
    """The exit code of `dspark bench gpu` on the CPU."""
    written = ["--json", str(json_file)] if json_file is not None else []
    return main(["bench", "gpu", "--device", "cpu", *flags, *written])


def test_every_section_runs_and_every_check_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gpu.json"
    assert run("--tiny", json_file=path) == 0
    out = capsys.readouterr().out
    assert "FAIL" not in out
    assert "0 checks failed" in out
    found = json.loads(path.read_text())
    assert list(found["sections"]) == list(SECTIONS)
    names = [check["name"] for check in found["checks"]]
    assert "greedy text, speculation on, graphs auto" in names
    assert "context, fused against per layer, torch.bfloat16" in names
    assert "attention by triton, torch.bfloat16, not causal" in names
    assert "graphs against eager, torch.float32" in names
    rows = found["tables"]["context write"]
    assert [row["tokens"] for row in rows] == [1, 8]
    assert all(row[f"{path}_ms"] > 0 for row in rows for path in ("per_layer", "stacked", "fused"))
    lengths = [row["accept_length"] for row in found["tables"]["speed by accept length"]]
    assert lengths == [float(n + 1) for n in range(8)]
    assert all(row["share_of_copy"] > 0 for row in found["tables"]["verify pass"])
    paths = [row["path"] for row in found["tables"]["stacked against per layer, end to end"]]
    assert paths == ["stacked", "per_layer"] * 2
    assert len(found["tables"]["aims"]) == 6
    assert [row["batch"] for row in found["tables"]["sampled rounds"]] == [1, 2]
    for row in found["tables"]["rounds beside a prompt"]:
        assert row["step_ms"] > 0
        assert row["alone_ms"] > 0
    assert found["tables"]["one long context among short ones"][0]["long_context"] == 64
    assert "rounds, attention by reference" in found["tables"]
    assert found["circumstances"]["transformers"]


def test_without_a_cuda_device_the_command_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["bench", "gpu"]) == 2
    assert "no CUDA device" in capsys.readouterr().err


def _breaks(device: torch.device, tiny: bool) -> Found:
    yield Check("before", True, "fine")
    raise RuntimeError("the device is gone\nwith a long story")


def _works(device: torch.device, tiny: bool) -> Found:
    yield Table("numbers", [{"n": 1}])


@pytest.fixture
def two_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "SECTIONS", {"triton": _breaks, "plain": _works})


@pytest.mark.usefixtures("two_sections")
def test_an_error_in_one_section_keeps_the_results_of_the_others(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    assert run("--only", "triton", "--only", "plain", json_file=path) == 1
    found = json.loads(path.read_text())
    assert found["checks"] == [
        {"name": "before", "passed": True, "detail": "fine"},
        {"name": "triton broke off", "passed": False, "detail": "RuntimeError: the device is gone"},
    ]
    assert found["tables"] == {"numbers": [{"n": 1}]}


@pytest.mark.usefixtures("two_sections")
def test_sections_that_do_not_start_in_time_fail(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    assert run("--only", "triton", "--only", "plain", "--minutes", "0", json_file=path) == 1
    checks = json.loads(path.read_text())["checks"]
    assert [check["name"] for check in checks] == ["triton", "plain"]
    assert checks[0]["detail"] == "left out: 0 minutes are over"


@pytest.mark.parametrize(
    ("ending", "detail"),
    [
        (subprocess.TimeoutExpired("python", 9), "its process did not end in time"),
        (-11, "its process ended with code -11"),
        (1, None),
    ],
)
def test_results_of_a_process_that_dies_or_hangs_are_kept(
    ending: Any, detail: str | None, tmp_path: Path
) -> None:
    """An error may make the device unusable for the process, but not for others."""
    commands = []

    def start(command: list[str], **options: Any) -> Any:
        commands.append(command)
        assert 0 < options["timeout"] <= 60
        found = {
            "checks": [{"name": "c", "passed": True, "detail": ""}],
            "tables": {"t": [{"n": 1}]},
        }
        Path(command[command.index("--json") + 1]).write_text(json.dumps(found))
        if isinstance(ending, Exception):
            raise ending
        return subprocess.CompletedProcess(command, ending)

    path = tmp_path / "gpu.json"
    with patch.object(subprocess, "run", start):
        code = run("--tiny", "--apart", "--only", "writes", "--minutes", "1", json_file=path)
    (command,) = commands
    assert command[1:5] == ["-m", "dspark", "bench", "gpu"]
    assert command[5:8] == ["--together", "--only", "writes"]
    assert "--tiny" in command
    found = json.loads(path.read_text())
    assert found["tables"] == {"t": [{"n": 1}]}
    assert [check["detail"] for check in found["checks"]] == ["", *filter(None, [detail])]
    assert code == (detail is not None)


def test_a_section_runs_in_a_separate_process(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    assert run("--tiny", "--apart", "--only", "context", json_file=path) == 0
    checks = json.loads(path.read_text())["checks"]
    assert checks
    assert all(check["passed"] for check in checks)


def test_a_table_keeps_the_rows_before_an_error() -> None:
    def rows() -> Iterator[Row]:
        yield {"n": 1}
        raise ValueError("no more")

    assert list(table("numbers", rows)) == [
        Table("numbers", [{"n": 1}]),
        Check("numbers broke off", False, "ValueError: no more"),
    ]
    assert list(catch_errors("fine", lambda: iter(()))) == []


def test_aims_are_compared_with_the_measurements() -> None:
    tables: dict[str, list[Row]] = {
        "context write": [{"tokens": 8, "per_layer_ms": 1.0, "fused_ms": 0.2}],
        "verify pass": [{"batch": 1, "share_of_copy": 0.8}],
        "rounds": [{"batch": 1, "step_ms": 5.0}],
    }
    (found,) = aims(tables)
    assert [row["found"] for row in found.rows] == [5.0, 1.25]
    assert list(aims({})) == []


def test_a_stale_draft_graph_fails_a_check_although_text_stays_right() -> None:
    propose = GraphedProposer.propose

    def stale(self: GraphedProposer, request: BlockRequest) -> DraftBlock:
        """As if the anchors had never been staged."""
        return propose(self, replace(request, anchor_ids=torch.zeros_like(request.anchor_ids)))

    with patch.object(GraphedProposer, "propose", stale):
        found = [check for check in graphs(CPU, True) if isinstance(check, Check)]
    passed = {check.name: check.passed for check in found}
    assert passed == {
        "graphs against eager, torch.float32": True,
        "draft graphs against eager, greedy, torch.float32": False,
        "draft graphs against eager, drawn, torch.float32": False,
    }


def test_flashinfer_is_checked_if_installed() -> None:
    backend = FlashInferAttention(
        page_size=16,
        workspace=Workspace(CPU, num_bytes=64),
        make_wrapper=FakeWrapper,
        fallback=ReferenceAttention(page_size=16, device=CPU),
    )
    offered = type("Offered", (), {"make_attention": staticmethod(lambda page_size: backend)})
    with patch.object(checks, "device_backend_of", lambda *_, **__: offered):
        found = list(checks.flashinfer_attention(CPU, True))
    assert [check.passed for check in found if isinstance(check, Check)] == [True, True]
    assert all("bfloat16" in check.name for check in found if isinstance(check, Check))


class _Event:
    """A mark on a device's stream: its time is that of the device, when it gets there."""

    now = 0.0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.at = -1.0

    def record(self) -> None:
        _Event.now += 2.5
        self.at = _Event.now

    def elapsed_time(self, end: "_Event") -> float:
        return end.at - self.at


def test_device_time_is_measured_between_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    device = torch.device("cuda")
    watch = Stopwatch(device)
    assert watch.ms(watch.mark(), watch.mark()) == 2.5
    (spread,) = in_turns({"nothing": lambda: None}, turns=3, device=device).values()
    assert spread.median == 2.5
