"""`dspark batch` on a tiny pair: results, errors, and what a killed run leaves for the next."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dspark.cli.main import main
from tests.support.paths import ROOT
from tests.support.server.tiny_pair import TinyPair


def line(custom_id: str, url: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def chat(custom_id: str, text: str, **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return line(custom_id, "/v1/chat/completions", messages=messages, **body)


def write(file: Path, lines: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return file


def results(file: Path) -> dict[str, Any]:
    """Return the response of every custom_id, each of which occurs once."""
    lines = [json.loads(each) for each in file.read_text().splitlines()]
    found = {each["custom_id"]: each["response"] for each in lines}
    assert len(found) == len(lines)
    return found


def without_ids(response: dict[str, Any]) -> dict[str, Any]:
    body = {k: v for k, v in response["body"].items() if k not in ("id", "created")}
    return {"status_code": response["status_code"], "body": body}


def test_every_request_gets_a_result_or_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = TinyPair.write(tmp_path)
    lines = [
        chat("chat", "hi", max_tokens=4, temperature=0, logprobs=True, n=2),
        line("text", "/v1/completions", prompt=["a", "b"], max_tokens=3, temperature=0),
        line("response", "/v1/responses", input="hi", max_output_tokens=4),
        line("grammar", "/v1/completions", prompt="a", guided_regex="[ab]{3}"),
        chat("wrong", "hi", max_tokens=-1),
        chat("stream", "hi", stream=True),
        chat("model", "hi", model="another"),
    ]
    file, output = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    argv = ["batch", *pair.flags, "--input", str(file), "--output", str(output)]
    assert main(argv) == 0
    errors = tmp_path / "out.errors.jsonl"
    summary = f"7 requests: 4 results in {output}, 3 errors in {errors}\n"
    assert capsys.readouterr().out == summary
    found, refused = results(output), results(errors)
    assert set(found) == {"chat", "text", "response", "grammar"}
    assert {response["status_code"] for response in found.values()} == {200}
    assert len(found["chat"]["body"]["choices"]) == len(found["text"]["body"]["choices"]) == 2
    assert set(found["grammar"]["body"]["choices"][0]["text"]) <= {"a", "b"}
    assert {name: r["status_code"] for name, r in refused.items()} == {
        "wrong": 400,
        "stream": 400,
        "model": 404,
    }
    assert refused["stream"]["body"]["error"]["param"] == "stream"
    before = output.read_bytes(), errors.read_bytes()
    assert main(argv) == 0  # nothing is left, and no model is loaded
    assert capsys.readouterr().out == summary
    assert (output.read_bytes(), errors.read_bytes()) == before


def test_results_of_another_input_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = TinyPair.write(tmp_path)
    output = ["--output", str(tmp_path / "out.jsonl")]
    first = write(tmp_path / "first.jsonl", [chat("a", "hi", max_tokens=1)])
    assert main(["batch", *pair.flags, "--input", str(first), *output]) == 0
    second = write(tmp_path / "second.jsonl", [chat("b", "hi", max_tokens=1)])
    assert main(["batch", *pair.flags, "--input", str(second), *output]) == 2
    assert "found the result of custom_id 'a', which is not in the input" in capsys.readouterr().err


@pytest.mark.slow
def test_a_batch_that_is_killed_twice_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    pair = TinyPair.write(tmp_path)
    lines = [
        chat(f"{i}", f"number {i}", max_tokens=40, temperature=i % 2, seed=i)
        if i % 3
        else line(f"{i}", "/v1/completions", prompt=f"{i}", max_tokens=40, temperature=0)
        for i in range(199)
    ]
    lines.append(chat("wrong", "hi", max_tokens=-1))
    file = write(tmp_path / "in.jsonl", lines)
    flags = [*pair.flags, "--input", str(file), "--concurrency", "4"]
    flags.append("--disable-prefix-cache")  # the usage says how much of a prompt was cached

    def start(output: Path) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "dspark", "batch", *flags, "--output", str(output)]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    def num_lines(file: Path) -> int:
        return file.read_bytes().count(b"\n") if file.exists() else 0

    undisturbed, killed = tmp_path / "undisturbed.jsonl", tmp_path / "killed.jsonl"
    assert start(undisturbed).communicate()[0].startswith("200 requests: 199 results in ")
    for least in (20, 90):
        process = start(killed)
        deadline = time.monotonic() + 120
        while num_lines(killed) < least:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        assert num_lines(killed) < 199
        with killed.open("ab") as stream:  # as if the kill had come within a write
            stream.write(b'{"id": "batch_req_1", "custom_id": "1')
    assert start(killed).communicate()[0].startswith("200 requests: 199 results in ")
    for name in ("jsonl", "errors.jsonl"):
        expected = results(undisturbed.with_suffix(f".{name}"))
        found = results(killed.with_suffix(f".{name}"))
        assert set(found) == set(expected)
        for custom_id, response in found.items():
            assert without_ids(response) == without_ids(expected[custom_id]), custom_id
