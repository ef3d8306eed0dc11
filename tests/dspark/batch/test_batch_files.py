"""Files of a batch: requests with the line at fault, and results that outlast a kill."""

import json
from pathlib import Path
from typing import Any

import pytest

from dspark.batch.batch_files import ResultFile, check_requests, read_requests
from server.settings.base import SettingsError

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


def request(custom_id: str, **fields: Any) -> dict[str, Any]:
    url = "/v1/chat/completions"
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": CHAT, **fields}


def write(file: Path, *lines: object) -> Path:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_requests_are_read_with_a_byte_order_mark_and_blank_lines(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    line = json.dumps(request("a")).encode()
    file.write_bytes(b"\xef\xbb\xbf" + line + b"\r\n\r\n" + line.replace(b'"a"', b'"b"'))
    assert [each.custom_id for each in read_requests(file)] == ["a", "b"]
    assert check_requests(file) == {"a", "b"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"method": "GET"}, "'method' must be 'POST'; found \"GET\""),
        ({"url": "/v1/embeddings"}, "'url' must be '/v1/chat/completions', "),
        ({"body": [1]}, "'body' must be an object; found [1]"),
        ({"custom_id": ""}, "'custom_id' must not be empty; found"),
        ({"priority": 1}, "'priority' is an unknown field"),
    ],
)
def test_a_wrong_line_is_named_before_anything_runs(
    fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    file = write(tmp_path / "in.jsonl", request("a"), {**request("b"), **fields})
    with pytest.raises(SettingsError) as info:
        check_requests(file)
    assert str(info.value).startswith(f"{file}:2: {message}")


def test_a_file_without_requests_or_with_one_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="found no request"):
        check_requests(write(tmp_path / "empty.jsonl"))
    twice = write(tmp_path / "twice.jsonl", request("a"), request("a"))
    with pytest.raises(SettingsError, match='custom_id "a" is given twice'):
        check_requests(twice)
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"custom_id"')
    with pytest.raises(SettingsError, match=r"broken\.jsonl:1: the line is not JSON"):
        check_requests(broken)


def test_results_are_appended_in_the_batch_format(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    with ResultFile(file) as results:
        assert results.done == frozenset()
        results.append("a", 200, "r", {"text": "\u2028é"})
    (line,) = file.read_text().splitlines()
    found = json.loads(line)
    assert found.pop("id").startswith("batch_req_")
    response = {"status_code": 200, "request_id": "r", "body": {"text": "\u2028é"}}
    assert found == {"custom_id": "a", "response": response, "error": None}
    with ResultFile(file) as results:
        assert results.done == {"a"}
        assert results.num_results == 1


@pytest.mark.parametrize("cut", [1, 12, 30, 80, -1])
def test_a_half_written_last_line_is_removed(cut: int, tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    with ResultFile(file) as results:
        results.append("a", 200, "r", {})
        first = file.read_bytes()
        results.append("b", 200, "r", {"text": "hello"})
    last = file.read_bytes()[len(first) :]
    file.write_bytes(first + last[:cut])
    with ResultFile(file) as results:
        assert results.done == {"a"}
        assert file.read_bytes() == first
        results.append("b", 200, "r", {})
    with ResultFile(file) as results:
        assert results.done == {"a", "b"}


@pytest.mark.parametrize("content", ["notes", "notes\n", '{"custom_id": "a"}\n', "\n"])
def test_a_file_of_something_else_is_refused_and_kept(content: str, tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    file.write_text(content)
    with pytest.raises(SettingsError, match=r"out\.jsonl:1: found a line that `dspark batch` did"):
        ResultFile(file)
    assert file.read_text() == content


def test_a_file_that_another_run_writes_is_refused(tmp_path: Path) -> None:
    with (
        ResultFile(tmp_path / "out.jsonl"),
        pytest.raises(SettingsError, match="another process writes to this file"),
    ):
        ResultFile(tmp_path / "out.jsonl")
