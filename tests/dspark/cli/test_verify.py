"""`dspark verify` as a user types it, over a tiny pair on disk."""

import json
from pathlib import Path

import pytest

from dspark.cli.main import main
from tests.support.bench.broken_engine import wrong_verification
from tests.support.engine.tiny_models import VOCAB
from tests.support.server.tiny_pair import TinyPair


def verify(pair: TinyPair, folder: Path, *words: str) -> int:
    file = folder / "mine.jsonl"
    file.write_text('{"prompt": "one"}\n{"prompt": "two more"}\n{"prompt": "three"}\n')
    return main(["verify", *pair.flags, "--prompts", str(file), "--max-tokens", "8", *words])


def test_an_honest_engine_is_proven_prompt_by_prompt(
    pair: TinyPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(pair, tmp_path, "--concurrency", "2") == 0
    captured = capsys.readouterr()
    *table, last = captured.out.splitlines()
    assert table[0].startswith("greedy identity with transformers: 3 prompts (other 3)")
    assert [line.split()[:4] for line in table[3:6]] == [
        [str(i), "other", "ok", "8"] for i in range(3)
    ]
    found = json.loads(last)
    assert (found["identical"], found["ties"], found["different"]) == (3, 0, 0)
    assert (found["command"], found["holds"], found["output_tokens"]) == ("verify", True, 24)
    assert found["accept_length_mean"] >= 1
    assert found["arguments"]["concurrency"] == 2
    assert "reference 3 of 3" in captured.err


def test_any_real_difference_is_exit_code_1(
    pair: TinyPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with wrong_verification(vocab=VOCAB):
        always = ("--speculative.draft_budget", "always")  # a lie needs rounds with drafts
        code = verify(pair, tmp_path, "--num-prompts", "1", *always)
    out = capsys.readouterr().out
    assert code == 1
    assert "DIFFERENT" in out
    found = json.loads(out.splitlines()[-1])
    assert (found["holds"], found["different"], found["prompts"]) == (False, 1, 1)
    assert found["results"][0]["top2_gap"] > 1e-4


def test_plain_decoding_can_be_proven_too(
    pair: TinyPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(pair, tmp_path, "--speculative-algorithm", "none") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["accept_length_mean"] == 1


def test_a_target_that_does_not_decode_greedily_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = TinyPair.write(tmp_path, num_beams=3)
    assert verify(pair, tmp_path) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "dspark: generation_config.json: num_beams: found 3" in captured.err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--max-tokens", "none"], "argument --max-tokens: found none; accepted: an integer"),
        (["--concurrency", "99"], "--concurrency: found 99; accepted: at most 16"),
        (["--temperature", "1"], "dspark verify: unknown flag --temperature"),
    ],
)
def test_what_cannot_be_proven_is_refused_in_one_line(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "--model", "a/b", "--speculative-algorithm", "none", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert line in captured.err
