"""Reading the file of servers to compare."""

from pathlib import Path

import pytest

from dspark.bench.http.server_specs import command_of, read_server_specs
from server.settings.schema import SettingsError

SMALL = """
ours: {about: ours, start: "$BIN/serve --port 1", url: "http://127.0.0.1:1"}
theirs: {about: theirs, start: serve, url: "http://127.0.0.1:2", peer: true, body: {cache: false}}
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "servers.yaml"
    file.write_text(text)
    return file


def test_servers_keep_the_order_of_their_file(tmp_path: Path) -> None:
    found = read_server_specs(written(tmp_path, SMALL))
    assert list(found) == ["ours", "theirs"]
    assert [c.peer for c in found.values()] == [False, True]
    address = found["theirs"].address("theirs")
    assert (address.name, address.url, address.extra_body) == (
        "theirs",
        "http://127.0.0.1:2",
        {"cache": False},
    )
    assert address.backend.path == "/v1/chat/completions"


def test_some_servers_of_a_file_can_be_chosen(tmp_path: Path) -> None:
    assert list(read_server_specs(written(tmp_path, SMALL), ["theirs"])) == ["theirs"]


@pytest.mark.parametrize(
    ("text", "only", "line"),
    [
        ("", [], "found no servers; accepted: a name"),
        ("- ours", [], "found no servers; accepted: a name"),
        ("ours: [", [], "while parsing"),
        ("ours: {start: x, url: 'http://h:1'}", [], "ours.about: Field required"),
        (SMALL + "more: {about: a, start: x, url: 'h:1'}", [], "more.url: String should match"),
        (SMALL.replace("peer", "pear"), [], "theirs.pear: Extra inputs are not permitted"),
        (SMALL, ["others"], "--only: found others; accepted: ours, theirs"),
    ],
)
def test_an_invalid_file_is_refused_in_one_line(
    tmp_path: Path, text: str, only: list[str], line: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        read_server_specs(written(tmp_path, text), only)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_in_a_command_are_those_of_the_environment() -> None:
    line = "$BIN/serve '${HOME}/a b' --cost $$5"
    command = command_of(line, {"BIN": "/some where", "HOME": "/h"}, where="ours.start")
    assert command == ["/some where/serve", "/h/a b", "--cost", "$5"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("$PEERS/serve", r"ours.start: \$PEERS is not set in the environment"),
        ("serve 'x", 'ours.start: found "serve \'x" .No closing quotation.; accepted: a command'),
    ],
)
def test_a_command_that_cannot_be_run_is_refused(line: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        command_of(line, {}, where="ours.start")
