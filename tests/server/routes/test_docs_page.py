"""/docs: all that the OpenAPI document says of routes and fields, without another server."""

import re

import httpx

from tests.support.server.fakes import FakeEngine, app_with, served


def test_docs_is_whole_without_another_server() -> None:
    app = app_with(FakeEngine())
    with served(app) as url:
        answer = httpx.get(f"{url}/docs")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert "://" not in answer.text
    assert "<script" not in answer.text
    links = set(re.findall(r'(?:src|href)="([^"]*)"', answer.text)) - {"openapi.json"}
    assert links == {f"#{name}" for name in re.findall(r'id="([^"]*)"', answer.text)}


def test_docs_has_every_route_and_every_field_of_its_body() -> None:
    app = app_with(FakeEngine())
    with served(app) as url:
        routes_part = httpx.get(f"{url}/docs").text.partition("<h1>Objects")[0]
    sections = routes_part.split("<h2>")[1:]
    told = {section[: section.index("</h2>")]: section for section in sections}
    document = app.openapi()
    routes = [
        (f"{method.upper()} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    assert [name for name, _ in routes] == list(told)
    for name, operation in routes:
        body = operation.get("requestBody")
        if body is None:
            assert "<table>" not in told[name]
            continue
        reference = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        for field in document["components"]["schemas"][reference]["properties"]:
            assert f"<td>{field}</td>" in told[name]


def test_docs_has_every_field_of_the_objects_in_a_body() -> None:
    app = app_with(FakeEngine())
    with served(app) as url:
        objects = httpx.get(f"{url}/docs").text.partition("<h1>Objects")[2].split("<h3 ")[1:]
    told = {re.findall(r'id="([^"]*)"', text)[0]: text for text in objects}
    assert {"SamplingBody", "Message", "Turn", "ToolChoice", "ResponseFormat"} <= set(told)
    schemas = app.openapi()["components"]["schemas"]
    for name, text in told.items():
        for field in schemas[name].get("properties", {}):
            assert f"<td>{field}</td>" in text
    assert "<td>max_new_tokens</td><td>integer, at least 1" in told["SamplingBody"]


def test_a_field_tells_its_kinds_its_limits_and_whether_it_must_be_there() -> None:
    app = app_with(FakeEngine())
    with served(app) as url:
        text = httpx.get(f"{url}/docs").text
    assert "<td>top_p</td><td>number, above 0, at most 1 or null</td><td></td>" in text
    assert "<td>required</td>" in text
    assert "integer, at least -9223372036854775808, below 9223372036854775808" in text


def test_the_page_that_fetches_its_program_elsewhere_is_gone() -> None:
    with served(app_with(FakeEngine())) as url:
        assert httpx.get(f"{url}/redoc").status_code == 404
