"""`dspark doctor --diagnose-draft` as a user types it, over a tiny pair on disk."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dspark.bench.compare.identity import generate_reference
from dspark.cli.main import main
from server.text.tokenizer import TextCodec
from tests.support.engine.overfitted import declare, write_overfitted_draft
from tests.support.engine.tiny_models import tiny_target
from tests.support.server.tiny_pair import TinyPair

PROMPTS = ("one", "two more")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    """A target, and a draft that has learned its answers to PROMPTS."""
    pair = TinyPair.write(tmp_path_factory.mktemp("pair"))
    codec = TextCodec.load(str(pair.target))
    target = tiny_target(has_eos=False)
    encoded = [codec.encode_chat([{"role": "user", "content": prompt}]) for prompt in PROMPTS]
    texts = [[*ids, *generate_reference(target, ids, max_new_tokens=64)] for ids in encoded]
    write_overfitted_draft(pair.draft, target, texts, taps=(0, 2, 3), samples=True)
    return pair


def diagnose(pair: TinyPair, folder: Path, *flags: str) -> int:
    file = folder / "mine.jsonl"
    file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    return main(["doctor", "--diagnose-draft", "--prompts", str(file), *pair.flags, *flags])


def test_a_misread_draft_is_exit_code_1_and_the_right_reading_is_named(
    pair: TinyPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert diagnose(pair, tmp_path) == 0
    out = capsys.readouterr().out
    assert "the draft is read as it was trained" in out
    declare(pair.draft, sample_from_anchor=False)
    try:
        assert diagnose(pair, tmp_path) == 1
    finally:
        declare(pair.draft, sample_from_anchor=True)
    title, *trials, _, verdict = capsys.readouterr().out.splitlines()
    assert title.endswith("in 2 answers")
    lengths = {remedy: float(n) for n, remedy in (line.split(maxsplit=1) for line in trials)}
    assert lengths["as declared"] < 1.3
    assert max(lengths, key=lambda remedy: lengths[remedy]).startswith("sample_from_anchor: true")
    assert "the right reading is sample_from_anchor: true in its config.json" in verdict


@pytest.mark.parametrize(
    ("flags", "draft", "code", "line"),
    [
        (
            ["--speculative-algorithm", "none"],
            None,
            2,
            "accepted: dspark, with a draft to diagnose",
        ),
        ([], Path("some/draft"), 1, "some/draft is not on this machine; --load"),
    ],
)
def test_what_cannot_be_diagnosed_is_refused_in_one_line(
    flags: list[str],
    draft: Path | None,
    code: int,
    line: str,
    pair: TinyPair,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = replace(pair, draft=draft or pair.draft)
    assert diagnose(given, tmp_path, *flags) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert line in captured.err


def test_prompts_without_a_diagnosis_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--prompts", "mine.jsonl"]) == 2
    assert "--prompts: accepted with --diagnose-draft only" in capsys.readouterr().err
