"""`dspark bench serve` as a user types it, against servers on this machine."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from dspark.cli.commands.bench_serve import addresses
from dspark.cli.main import command_parser, find_command, main
from tests.support.bench.broken_server import CHUNK, DONE, LAST, answer, responding
from tests.support.server.fakes import FakeEngine, app_with, served

SHORT = ["--num-prompts", "4", "--max-tokens", "8", "--trials", "2"]


def engine(says: str = "hello world") -> FakeEngine:
    return FakeEngine(says, max_len=1000)


def parsed(*words: str) -> argparse.Namespace:
    return command_parser(find_command(["bench", "serve"])).parse_strictly(list(words))


def test_two_servers_are_measured_in_turns_and_compared(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ours, theirs = engine("hello world"), engine("hello there")
    with served(app_with(ours)) as one, served(app_with(theirs)) as two:
        words = ["--base-url", f"ours={one}/v1/", "--base-url", f"theirs={two}"]
        words += ["--backend", "theirs=native", "--concurrency", "2", "--output", str(tmp_path)]
        assert main(["bench", "serve", *words, *SHORT]) == 0
    captured = capsys.readouterr()
    *table, last = captured.out.splitlines()
    assert table[0].startswith(
        "serving: 4 prompts (chat 1, code 1, arithmetic 1, rewriting 1), at "
    )
    assert "2 clients, temperature 0, 2 trials" in table[0]
    assert table[2].split() == ["ours", "theirs"]
    for name in ("Successful requests", "Output token throughput (tok/s)", "P99 ITL (ms)"):
        assert any(line.startswith(name) for line in table), name
    assert "answers of theirs equal to those of ours, letter by letter: 0 of 8" in table
    found = json.loads(last)
    assert found["command"] == "bench-serve"
    assert found["servers"]["ours"]["completed"] == {"median": 4, "min": 4, "max": 4}
    assert found["servers"]["ours"]["total_generated_tokens"]["median"] == 32
    assert found["servers"]["theirs"]["path"] == "/generate"
    assert found["servers"]["theirs"]["ratio_to_first"]["output_throughput"]["median"] > 0
    # "hello wo" and "hello th": cut at eight tokens, and different
    assert found["servers"]["theirs"]["same_answers_as_first"] == [0, 8]
    assert {"commit", "cpu", "cores", "load_average_at_start", "versions"} <= set(found)
    assert [x for x in captured.err.splitlines() if x.startswith(("warm-up", "trial"))] == [
        "warm-up: ours",
        "warm-up: theirs",
        "trial 1 of 2: ours",
        "trial 1 of 2: theirs",
        "trial 2 of 2: theirs",
        "trial 2 of 2: ours",
    ]
    assert len(ours.requests) == len(theirs.requests) == 2 + 2 * 4
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("bench-serve-")
    assert json.loads(file.read_text()) == found


def test_requests_may_arrive_at_a_rate(capsys: pytest.CaptureFixture[str]) -> None:
    with served(app_with(engine())) as url:
        words = ["--base-url", url, "--request-rate", "400", "--vary-prompts", *SHORT]
        assert main(["bench", "serve", *words]) == 0
    captured = capsys.readouterr()
    assert "Poisson arrivals at 400/s" in captured.out
    found = json.loads(captured.out.splitlines()[-1])
    assert found["arguments"]["request_rate"] == 400
    (name,) = found["servers"]
    assert name == url.partition("://")[2]


def test_numbered_prompts_are_new_in_every_trial_and_the_same_for_every_server() -> None:
    one, two = engine(), engine()
    with served(app_with(one)) as a, served(app_with(two)) as b:
        words = ["--base-url", f"a={a}", "--base-url", f"b={b}", "--vary-prompts", *SHORT]
        assert main(["bench", "serve", *words]) == 0
    asked = [[r.prompt_ids for r in e.requests] for e in (one, two)]
    assert sorted(asked[0]) == sorted(asked[1])
    assert len(set(asked[0])) == len(asked[0]) == 10


def test_a_server_without_answers_gives_exit_code_1_and_its_errors_are_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    refusing = answer(b'{"error":{"message":"no such model"}}', status=b"404 Not Found")
    with responding(refusing) as url:
        assert main(["bench", "serve", "--base-url", f"x={url}", *SHORT]) == 1
    out = capsys.readouterr().out
    assert "  x: 8 x status 404: no such model" in out
    assert "note: x answered nothing in 2 of 2 trials" in out
    found = json.loads(out.splitlines()[-1])
    assert found["holds"] is False
    assert found["servers"]["x"]["failures"] == [
        {"kind": "status 404", "detail": "no such model", "count": 8}
    ]


def test_a_server_without_usage_gets_no_token_rates(capsys: pytest.CaptureFixture[str]) -> None:
    with responding(answer(CHUNK + LAST + DONE)) as url:
        assert main(["bench", "serve", "--base-url", f"x={url}", *SHORT]) == 0
    out = capsys.readouterr().out
    assert "note: x does not report usage for every answer" in out
    assert "dropped its prefix cache" not in out  # it answers every POST with 200
    found = json.loads(out.splitlines()[-1])
    assert "output_throughput" not in found["servers"]["x"]


def test_a_refused_connection_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "--base-url", "http://127.0.0.1:9"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("dspark: --base-url http://127.0.0.1:9: no connection (")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "the following arguments are required: --base-url"),
        (["--base-url", "localhost:1"], "--base-url: found localhost:1; accepted: [NAME=]http://"),
        (
            ["--base-url", "a=http://x", "--base-url", "a=http://y"],
            "--base-url: found the names a, a",
        ),
        (
            ["--base-url", "http://x", "--backend", "soap"],
            "--backend: found soap; accepted: openai",
        ),
        (
            ["--base-url", "http://x", "--backend", "z=native"],
            "--backend: found z=native; accepted n",
        ),
        (["--base-url", "http://x", "--extra-body", "[1]"], "--extra-body: found [1]; accepted:"),
        (["--base-url", "http://x", "--request-rate", "0"], "--request-rate: found 0; accepted: a"),
        (
            ["--base-url", "http://x", "--request-rate", "2", "--concurrency", "2"],
            "--request-rate: found together with --concurrency",
        ),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "serve", *words]) == 2
    captured = capsys.readouterr()
    assert line in captured.err
    assert captured.err.count("\n") == 1


def test_a_value_is_for_all_servers_or_for_one_by_its_name() -> None:
    urls = ["--base-url", "a=http://x:1/v1", "--base-url", "b=http://y:2"]
    extra = ["--extra-body", '{"cache_prompt": false}', "--extra-body", 'b={"n": 1}']
    a, b = addresses(parsed(*urls, *extra, "--model", "m=1", "--model", "b=other"))
    assert (a.name, a.url, a.model, a.extra_body) == (
        "a",
        "http://x:1",
        "m=1",
        {"cache_prompt": False},
    )
    assert (b.url, b.model, b.extra_body) == ("http://y:2", "other", {"n": 1})


def test_measuring_a_server_loads_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from dspark.cli.main import main; "
        "main(['bench', 'serve', '--base-url', 'http://127.0.0.1:9']); "
        "print(*{'torch', 'transformers'} & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == ""
