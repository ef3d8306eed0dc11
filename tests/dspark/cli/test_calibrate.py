"""`dspark calibrate` as a user types it, over a tiny pair on disk."""

import json
import sys
from pathlib import Path

import pytest

from dspark.cli.main import main
from tests.support.server.tiny_pair import TinyPair

ENOUGH = ("--max-tokens", "56", "--concurrency", "8")  # of all 16 prompts, for they are few


@pytest.fixture
def pair(tmp_path: Path) -> TinyPair:
    return TinyPair.write(tmp_path / "pair")


def calibrate(pair: TinyPair, folder: Path, *words: str) -> int:
    file = folder / "mine.jsonl"
    lines = [json.dumps({"prompt": f"say {i}"}) for i in range(16)]
    file.write_text("\n".join(lines))
    return main(["calibrate", *pair.flags, "--prompts", str(file), *words])


def test_temperatures_are_fitted_and_written_to_the_drafts_folder(
    pair: TinyPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate(pair, tmp_path, *ENOUGH) == 0
    *table, last = capsys.readouterr().out.splitlines()
    found, written = json.loads(last), json.loads((pair.draft / "calibration.json").read_text())
    assert table[0].startswith("calibration of confidences: 16 prompts (other 16)")
    assert table[2].split() == [
        *("position", "temperature", "shift", "ECE", "after", "AUC", "after", "Brier", "after")
    ]
    assert written["temperatures"] == pytest.approx(found["temperatures"], rel=1e-6)
    assert len(written["temperatures"]) == len(written["ece_before"]) == 4
    assert written["num_samples"] == found["fitted_rounds"] >= 600
    assert written["dataset"] == "mine.jsonl, 16 prompts, temperature 0"
    assert found["ece_after_mean"] < found["ece_before_mean"]  # random heads are far off
    assert (pair.draft / "calibration.png").read_bytes().startswith(b"\x89PNG")


def test_temperatures_that_are_there_are_replaced_only_on_demand(
    pair: TinyPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate(pair, tmp_path, *ENOUGH) == 0
    capsys.readouterr()
    assert calibrate(pair, tmp_path, *ENOUGH) == 1
    assert "calibration.json: found temperatures from" in capsys.readouterr().err
    assert calibrate(pair, tmp_path, *ENOUGH, "--replace") == 0


def test_too_few_rounds_are_refused_and_nothing_is_written(
    pair: TinyPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate(pair, tmp_path, "--max-tokens", "4", "--num-prompts", "4") == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "accepted: at least 600 in 4" in captured.err
    assert not (pair.draft / "calibration.json").exists()


def test_collecting_stops_at_the_rounds_that_are_wanted(
    pair: TinyPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = ("--max-tokens", "130", "--concurrency", "4", "--rounds", "600")
    assert calibrate(pair, tmp_path, *long) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out.splitlines()[-1])
    assert 600 <= found["fitted_rounds"] < 1000
    assert 4 <= found["prompts"] < 16
    assert "collecting at least 600 rounds, at most about 600, from 16 prompts" in captured.err


def test_collecting_stops_when_too_few_rounds_can_follow(
    pair: TinyPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate(pair, tmp_path, "--max-tokens", "30", "--concurrency", "1") == 1
    assert "found 0 rounds of 0 prompts" in capsys.readouterr().err


def test_a_draft_without_a_confidence_head_is_refused(
    pair: TinyPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import load_file, save_file

    weights = pair.draft / "model.safetensors"
    kept = {n: t for n, t in load_file(weights).items() if not n.startswith("confidence_head.")}
    save_file(kept, weights)
    file = pair.draft / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"enable_confidence_head": False}))
    assert calibrate(pair, tmp_path) == 1
    assert "enable_confidence_head: found false" in capsys.readouterr().err


def test_without_matplotlib_only_the_plot_is_missing_and_a_note_names_the_package(
    pair: TinyPair,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert calibrate(pair, tmp_path, *ENOUGH) == 0
    assert "matplotlib is not installed (pip install" in capsys.readouterr().out
    assert (pair.draft / "calibration.json").exists()
    assert not (pair.draft / "calibration.png").exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--temperature", "-1"], "--temperature: found -1; accepted: a number, at least 0"),
        (["--speculative-algorithm", "none"], "speculative.algorithm: found none"),
        (["--rounds", "10"], "--rounds: found 10; accepted: at least 600"),
        (["--num-prompts", "99"], "--num-prompts: found 99"),
    ],
)
def test_what_cannot_be_calibrated_is_refused_in_one_line(
    pair: TinyPair,
    tmp_path: Path,
    words: list[str],
    complaint: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert calibrate(pair, tmp_path, *words) == 2
    err = capsys.readouterr().err
    assert complaint in err
    assert len(err.splitlines()) == 1
