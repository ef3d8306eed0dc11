"""The comparison with other servers runs end to end, with small servers in their place."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from benchmarks.peers.compare import main
from dspark.bench.http.server_specs import read_server_specs
from dspark.bench.workloads.prompts import read_prompts
from dspark.cli.main import command_parser, find_command
from tests.support.ports import free_port

HERE = Path("benchmarks/peers")
SHORT = ["--load", "1:4", "--load", "2:4", "--max-tokens", "8", "--trials", "2"]


def servers(folder: Path) -> Path:
    ports = {name: free_port() for name in ("ours", "theirs")}
    journal = folder / "journal"
    starts = {
        name: f"{sys.executable} -m tests.support.bench.small_server {name} {port} {journal}"
        for name, port in ports.items()
    }
    bench = f"{sys.executable} -m tests.support.bench.small_bench 1.0 {journal}"
    file = folder / "servers.yaml"
    file.write_text(
        f"ours: {{about: ours, start: '{starts['ours']}', engine: '{bench}',"
        f" url: 'http://127.0.0.1:{ports['ours']}'}}\n"
        f"theirs: {{about: theirs, start: '{starts['theirs']}', peer: true, stays: true,"
        f" url: 'http://127.0.0.1:{ports['theirs']}'}}\n"
    )
    return file


def test_the_whole_program_prints_tables_and_keeps_one_dated_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    results.mkdir()
    arguments = ["--servers", str(servers(tmp_path)), "--output", str(results), *SHORT]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    *table, last = captured.out.splitlines()
    assert table[0].startswith("servers, one at a time on the machine: 8 output tokens a request")
    assert any(line.startswith("1 stream, 4 prompts") for line in table)
    assert any(line.startswith("2 streams, 4 prompts") for line in table)
    assert any(line.startswith("ours, 2 streams, 4 prompts") for line in table)  # what HTTP adds
    assert "answers of theirs equal to those of ours, letter by letter: 8 of 8" in table
    found = json.loads(last)
    assert [load["streams"] for load in found["loads"]] == [1, 2]
    assert found["loads"][1]["servers"]["theirs"]["total_generated_tokens"]["median"] == 32
    assert found["loads"][0]["speed_ratio_to_peers"]["ours"]["theirs"]["median"] > 0
    assert {"ours"} == set(found["loads"][0]["added_percent"])
    assert {"commit", "cpu", "cores", "load_average_at_start", "seconds"} <= set(found)
    (file,) = results.iterdir()
    assert re.fullmatch(r"bench-peers-\d{8}-\d{6}\.json", file.name)
    assert json.loads(file.read_text()) == found
    assert [line.split("  ")[-1] for line in captured.err.splitlines()] == [
        *("trial 1 of 2: ours", "trial 1 of 2: theirs"),
        *("trial 2 of 2: theirs", "trial 2 of 2: ours"),
    ]


def test_some_servers_may_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "--servers",
        str(servers(tmp_path)),
        "--only",
        "theirs",
        "--trials",
        "1",
        *SHORT[:2],
    ]
    assert main(arguments) == 0
    assert list(json.loads(capsys.readouterr().out.splitlines()[-1])["contenders"]) == ["theirs"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--only", "nothing"], "compare: --only: found nothing; accepted: speculation, plain,"),
        (["--load", "1:999"], "compare: --load: found 999 prompts; accepted: at most "),
        (["--output", "/no/such/folder/x.json"], "compare: --output: found /no/such/folder/x.json"),
        (["--only", "llama.cpp"], "compare: llama.cpp.start: $PEERS is not set in the environment"),
    ],
)
def test_an_invalid_command_is_one_line(
    arguments: list[str],
    line: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PEERS", raising=False)
    assert main(arguments) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(line)


def test_our_own_entries_are_commands_that_exist() -> None:
    specs = read_server_specs(HERE / "servers.yaml")
    ours = {name: spec for name, spec in specs.items() if not spec.peer}
    assert set(ours) == {"speculation", "plain", "int8", "int8 plain"}
    assert {"llama.cpp", "llama.cpp Q8_0", "vllm"} < specs.keys() - ours.keys()
    lines = [spec.start for spec in ours.values()]
    lines += [spec.engine for spec in ours.values() if spec.engine]
    for program, *arguments in map(shlex.split, lines):
        assert program == "$BIN/dspark"
        command_parser(find_command(arguments)).parse_strictly(arguments[1:])
    assert len({spec.url for spec in specs.values()}) == len(specs)


def test_there_are_prompts_of_every_kind_for_sixteen_streams() -> None:
    prompts = read_prompts(HERE / "prompts.jsonl")
    assert len(prompts) == 16
    kinds = [prompt.category for prompt in prompts]
    assert {kind: kinds.count(kind) for kind in kinds} == dict.fromkeys(
        ("chat", "code", "arithmetic", "rewriting"), 4
    )
