"""`dspark eval` as a user types it, over a tiny pair on disk."""

import json
from pathlib import Path

import pytest

from dspark.cli.main import main
from tests.support.full_disk import room_for
from tests.support.server.tiny_pair import TinyPair


def test_a_table_and_one_line_of_json_with_a_set_for_each_file(
    pair: TinyPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sums, tales = tmp_path / "sums.jsonl", tmp_path / "tales.jsonl"
    sums.write_text('{"prompt": "1 + 1"}\n{"turns": ["2 + 2"]}\n')
    tales.write_text('{"prompt": "once"}\n{"category": "code", "prompt": "def"}\n')
    files = ["--prompts", str(sums), str(tales)]
    assert main(["eval", *pair.flags, *files, "--max-tokens", "6", "--concurrency", "2"]) == 0
    captured = capsys.readouterr()
    *table, last = captured.out.splitlines()
    assert table[0].startswith("accept lengths: 4 prompts (sums 2, tales 1, code 1)")
    assert "accept_rate@0" in table[2]
    found = json.loads(last)
    assert [(r["prompt_set"], r["temperature"]) for r in found["results"]] == [
        (name, t) for t in (0, 1) for name in ("sums", "tales", "code", "all")
    ]
    assert found["command"] == "eval"
    assert found["arguments"]["temperatures"] == [0, 1]
    assert "temperature 1" in captured.err


def test_a_result_that_does_not_fit_on_the_disk_is_printed_all_the_same(
    pair: TinyPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--num-prompts", "1", "--max-tokens", "4", "--output", str(tmp_path / "found.json")]
    with room_for(100):
        assert main(["eval", *pair.flags, *words]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out.splitlines()[-1])["command"] == "eval"
    assert captured.err.splitlines()[-1].startswith("dspark: File too large")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--temperatures", "-1"], "--temperatures: found -1; accepted: a number, at least 0"),
        (["--speculative-algorithm", "none"], "speculative.algorithm: found none"),
        (["--prompts", "no-such-file.jsonl"], "no-such-file.jsonl"),
        (["--num-prompts", "99"], "--num-prompts: found 99"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_in_one_line(
    pair: TinyPair, words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", *pair.flags, *words]) == 2
    err = capsys.readouterr().err
    assert complaint in err
    assert len(err.splitlines()) == 1


@pytest.mark.weights
def test_int8_matrices_of_the_demo_draft_cost_no_accept_length(
    demo_target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Over the int8 target, whose text does not depend on the draft's matrices."""
    words = ["--config", "demo", "--quantization", "int8", "--device.num_threads", "1"]
    words += ["--speculative.draft_budget", "always", "--speculative.lookup", "off"]
    words += ["--temperatures", "0", "--num-prompts", "36", "--max-tokens", "48"]
    lengths, texts = {}, {}
    for name in ("float32", "int8"):
        assert main(["eval", *words, "--speculative.draft_dtype", name]) == 0
        found = json.loads(capsys.readouterr().out.splitlines()[-1])
        lengths[name] = found["accept_length_mean"]
        texts[name] = found["results"][-1]["output_tokens"]
    assert texts["int8"] == texts["float32"] > 1000
    assert lengths["float32"] > 1.5
    assert lengths["int8"] > 0.98 * lengths["float32"]
