"""`dspark bench` as a user types it, over a tiny pair on disk."""

import json
import re
from pathlib import Path

import pytest

from dspark.cli.main import main
from tests.support.bench.broken_engine import wrong_verification
from tests.support.engine.cpu_kernels import kernels_or_skip
from tests.support.engine.tiny_models import VOCAB
from tests.support.server.tiny_pair import TinyPair

PLAIN = ["--model", "some/target", "--speculative-algorithm", "none"]
DRAFTED = ["--model", "some/target", "--draft-model", "some/draft"]
SHORT = ["--num-prompts", "2", "--max-tokens", "6", "--trials", "2"]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prompts that fit into the tiny models."""
    file = tmp_path_factory.mktemp("prompts") / "mine.jsonl"
    lines = [
        {"category": "chat", "prompt": "how are you?"},
        {"category": "chat", "prompt": "and the weather?"},
        {"category": "code", "turns": ["print a line", "and another"]},
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


def bench(pair: TinyPair, asked: Path, *words: str) -> int:
    return main(["bench", *pair.flags, "--prompts", str(asked), *SHORT, *words])


def test_comparing_speculation_prints_a_table_and_one_line_of_json(
    pair: TinyPair, asked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(pair, asked, "--compare", "speculation") == 0
    captured = capsys.readouterr()
    *table, last = captured.out.splitlines()
    assert table[0].startswith(
        "speculation against plain decoding: 2 prompts (chat 1, code 1), at most 6 output tokens "
        "each, 1 at a time, temperature 0, 2 trials"
    )
    assert any(re.match(r"output tokens/s, end to end +\d", line) for line in table)
    assert any(line.startswith("note: stage times are the host's clock") for line in table)
    assert any(line.startswith("note: fewer than 3 trials") for line in table)
    found = json.loads(last)
    assert found["command"] == "bench"
    assert found["holds"] is True
    assert found["token_ids_identical"] is True
    assert found["arms"]["plain"]["requests"]["median"] == 2
    assert found["tokens_per_s_target_alone"] > 0
    assert found["accept_length_mean"] >= 1
    assert found["arguments"] == {
        "compare": "speculation",
        "profile": False,
        "turns": 15,
        "prompts": str(asked),
        "num_prompts": 2,
        "max_tokens": 6,
        "concurrency": 1,
        "trials": 2,
        "temperature": 0.0,
        "seed": 0,
    }
    assert found["config"]["kv"]["page_size"] == 8
    assert {"commit", "device_name", "cores", "versions", "date"} <= set(found)
    assert found["torch_threads"] == 1
    assert [
        line for line in captured.err.splitlines() if line.startswith(("warm-up", "trial"))
    ] == [
        "warm-up: plain",
        "warm-up: speculation",
        "trial 1 of 2: plain",
        "trial 1 of 2: speculation",
        "trial 2 of 2: speculation",
        "trial 2 of 2: plain",
    ]


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_each_proposer_alone_is_compared_over_the_same_target(
    quantization: str, pair: TinyPair, asked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels_or_skip()
    words = ["--compare", "speculation", "--by-proposer", "--quantization", quantization]
    assert bench(pair, asked, *words) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["holds"] is True
    assert list(found["arms"]) == ["plain", "draft only", "lookup only", "speculation"]
    drafted = {name: arm["draft_rounds_percent"]["max"] for name, arm in found["arms"].items()}
    assert drafted["plain"] == drafted["lookup only"] == 0
    looked_up = {name: arm["lookup_rounds_percent"]["max"] for name, arm in found["arms"].items()}
    assert looked_up["plain"] == looked_up["draft only"] == 0


def test_a_comparison_writes_one_page_that_loads_nothing(
    pair: TinyPair, asked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.html"
    assert bench(pair, asked, "--compare", "speculation", "--html", str(file)) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    page = file.read_text()
    for arm in ("plain", "speculation"):
        speed = found["arms"][arm]["decode_tokens_per_s"]
        shown = f"{speed['median']:.1f} tok/s [{speed['min']:.1f} - {speed['max']:.1f}]"
        assert shown in page
        assert f"A step's time: {arm}" in page
    loaded = re.findall(r"(?:src|href)=|url\(|@import|<script", page)
    assert loaded == []


def test_comparing_the_context_writes_prints_both_paths(
    pair: TinyPair, asked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(pair, asked, "--compare", "stacked", "--concurrency", "2") == 0
    *table, last = capsys.readouterr().out.splitlines()
    assert any(re.match(r"512 +\d.* µs .* µs", line) for line in table)
    assert any(line.startswith("fallback: none") for line in table)
    found = json.loads(last)
    assert set(found["context_write_us"]) == {"1", "8", "64", "512"}
    assert found["context_kv_path"] == "stacked"
    assert found["accept_lengths_agree"] is True


def test_comparing_grammars_prints_what_following_costs(
    pair: TinyPair, asked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Random weights say ids that are no text, which a regex of any text does not allow.
    assert bench(pair, asked, "--compare", "grammar") == 1
    *table, last = capsys.readouterr().out.splitlines()
    assert any(line.startswith("any text ") for line in table)
    found = json.loads(last)
    assert list(found["arms"]) == ["free", "any text", "grammar"]
    assert found["token_ids_identical"] is False
    assert found["grammar_to_free"]["median"] > 0


def test_comparing_with_transformers_prints_three_arms(
    pair: TinyPair, asked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(pair, asked, "--compare", "transformers") == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out.splitlines()[-1])
    assert list(found["arms"]) == ["transformers", "plain", "speculation"]
    assert found["token_ids_identical"] is True
    assert "trial 2 of 2: transformers" in captured.err


def test_a_profile_prints_the_parts_of_a_round_and_what_the_server_adds(
    pair: TinyPair, asked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(pair, asked, "--profile", "--turns", "1") == 0
    *table, last = capsys.readouterr().out.splitlines()
    assert table[0].startswith("profile: 2 prompts (chat 1, code 1), 1 at a time for the rounds")
    assert any(line.startswith("target forward, 5 rows") for line in table)
    assert any(line.startswith("HTTP: ") for line in table)
    assert any(line.startswith("note: by difference: ") for line in table)
    found = json.loads(last)
    assert found["arguments"]["profile"] is True
    assert found["http_us_per_event"]["median"] > 0
    assert found["parts"]["target forward, 5 rows"]["times_the_limit"] > 0


def test_without_compare_the_engine_is_measured_as_configured(
    pair: TinyPair, asked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--temperature", "0.7", "--seed", "3", "--output", str(tmp_path)]
    assert bench(pair, asked, *words, "--speculative-algorithm", "none") == 0
    out = capsys.readouterr().out
    found = json.loads(out.splitlines()[-1])
    assert list(found["arms"]) == ["plain"]
    assert found["tokens_per_s"] == found["tokens_per_s_target_alone"] > 0
    assert found["arguments"]["temperature"] == 0.7
    (file,) = tmp_path.iterdir()
    assert re.fullmatch(r"bench-\d{8}-\d{6}\.json", file.name)
    assert json.loads(file.read_text()) == found


def test_arms_that_differ_are_exit_code_1(
    pair: TinyPair, asked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "result.json"
    with wrong_verification(vocab=VOCAB):
        code = bench(
            pair,
            asked,
            *("--compare", "speculation", "--output", str(file)),
            *("--speculative.draft_budget", "always"),  # a lie needs rounds with drafts
        )
    out = capsys.readouterr().out
    assert code == 1
    assert "token ids: DIFFERENT, which violates the guarantee" in out
    assert json.loads(file.read_text())["holds"] is False


def test_a_prompt_that_does_not_fit_is_refused_before_the_first_trial(
    pair: TinyPair, asked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--prompts", str(asked), "--num-prompts", "2", "--max-tokens", "1000"]
    assert main(["bench", *pair.flags, *words]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "dspark: prompt 0 (chat) has " in captured.err
    assert "maximum context length" in captured.err
    assert "trial" not in captured.err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([*DRAFTED, "--compare", "x"], "argument --compare: invalid choice: 'x'"),
        (
            [*DRAFTED, "--compare", "stacked", "--temperature", "0.5"],
            "--temperature: found 0.5; accepted with --compare: 0",
        ),
        (
            [*DRAFTED, "--compare", "stacked", "--profile"],
            "--profile: found together with --compare; accepted: one of them",
        ),
        (
            [*PLAIN, "--compare", "transformers", "--concurrency", "2"],
            "--concurrency: found 2; accepted with --compare transformers: 1",
        ),
        (
            [*DRAFTED, "--temperature", "-1"],
            "--temperature: found -1; accepted: a number, at least 0",
        ),
        (
            [*PLAIN, "--compare", "speculation"],
            "--compare speculation: speculative.algorithm is none; accepted: dspark or lookup",
        ),
        (
            [*DRAFTED, "--trials", "0"],
            "argument --trials: found 0; accepted: an integer, at least 1",
        ),
        ([*DRAFTED, "--num-prompts", "76"], "--num-prompts: found 76; accepted: at most 75"),
        (
            [*DRAFTED, "--concurrency", "17"],
            "--concurrency: found 17; accepted: at most 16, which is scheduler.max_running",
        ),
        ([*DRAFTED, "--html", "report.html"], "--html: accepted with --compare only"),
        (
            [*DRAFTED, "--by-proposer"],
            "--by-proposer: accepted with --compare speculation only",
        ),
        (
            [*DRAFTED, "--compare", "speculation", "--by-proposer", "--speculative.lookup", "off"],
            "--by-proposer: found speculative.algorithm dspark with speculative.lookup.mode off; "
            "accepted: dspark with auto or on",
        ),
        (
            [*DRAFTED, "--compare", "stacked", "--html", "no/such/file.html"],
            "--html: found no/such/file.html; accepted: a file in a folder that exists",
        ),
        ([*DRAFTED, "--prompts", "no.jsonl"], "--prompts: no.jsonl: No such file or directory"),
        (
            [*DRAFTED, "--output", "no/such/file.json"],
            "--output: found no/such/file.json; accepted: a file in a folder that exists",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert line in captured.err
    assert captured.err.count("\n") == 1


def test_a_line_that_is_no_prompt_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "fine"}\n{"question": "what?"}\n')
    assert main(["bench", *DRAFTED, "--prompts", str(file)]) == 2
    assert f"--prompts: {file}:2: found the keys question" in capsys.readouterr().err
