"""The playground's files are served without a key, under a strict policy, and load nothing else."""

import re

import pytest

from server.http.auth import KeyRing
from server.playground.router import PLAYGROUND_PATHS
from tests.server.conftest import Connect
from tests.support.paths import ROOT
from tests.support.server.responses import error_of

FILES = sorted((ROOT / "server" / "playground" / "static").iterdir())


def test_the_page_and_its_files_need_no_key(connect: Connect) -> None:
    client = connect(keys=KeyRing(callers=("right",), admins=("admin",)))
    assert {f"/playground/{path.name}" for path in FILES} | {"/"} == PLAYGROUND_PATHS
    for path in PLAYGROUND_PATHS:
        assert client.get(path).status_code == 200
        assert client.head(path).status_code == 200
    error_of(client.get("/server_info"), 401)
    error_of(client.get("/playground/nothing.js"), 401)


def test_a_file_is_sent_as_it_lies_in_the_package(connect: Connect) -> None:
    client = connect()
    kinds = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
    for path in FILES:
        response = client.get(f"/playground/{path.name}")
        assert response.content == path.read_bytes()
        kind = response.headers["content-type"].partition(";")[0]
        assert kind == kinds.get(path.suffix, "image/svg+xml")
    assert client.get("/").text == (FILES[0].parent / "index.html").read_text()


def test_the_policy_allows_the_servers_origin_alone(connect: Connect) -> None:
    response = connect().get("/")
    policy = dict(
        part.strip().split(" ", 1)
        for part in response.headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    for name, value in policy.items():
        assert value == "'self'" or value == "'none'", name
    assert response.headers["x-content-type-options"] == "nosniff"


def test_a_browser_that_has_a_file_gets_no_second_copy(connect: Connect) -> None:
    client = connect()
    etag = client.get("/").headers["etag"]
    again = client.get("/", headers={"if-none-match": etag})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/", headers={"if-none-match": '"older"'}).status_code == 200


def test_every_address_in_the_files_is_relative() -> None:
    for path in FILES:
        text = path.read_text().replace("http://www.w3.org/", "")  # names of SVG, never loaded
        assert "://" not in text, path.name
        for address in re.findall(r'(?:src|href)="([^"]*)"|from "([^"]*)"|url\(([^)]*)\)', text):
            assert not "".join(address).startswith("/"), (path.name, address)


def test_the_page_has_no_inline_script_or_style() -> None:
    page = (FILES[0].parent / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=", page)


@pytest.mark.parametrize("path", ["/", "/playground/index.html"])
def test_without_the_playground_its_paths_are_unknown(connect: Connect, path: str) -> None:
    error_of(connect(playground=False).get(path), 404)
    keyed = connect(playground=False, keys=KeyRing(callers=("right",)))
    error_of(keyed.get(path), 401)


def test_an_unknown_file_is_named_in_the_error(connect: Connect) -> None:
    assert "nothing.js" in error_of(connect().get("/playground/nothing.js"), 404)["message"]
