"""/docs shows the OpenAPI document without external resources."""

import re

import httpx

from tests.support.server.fakes import FakeEngine, app_with, served


def test_the_docs_page_is_self_contained() -> None:
    app = app_with(FakeEngine())
    with served(app) as url:
        response = httpx.get(f"{url}/docs")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/html")
    assert "://" not in response.text
    assert "<script" not in response.text
    links = set(re.findall(r'(?:src|href)="([^"]*)"', response.text)) - {"openapi.json"}
    assert links == {f"#{name}" for name in re.findall(r'id="([^"]*)"', response.text)}


def test_the_docs_page_has_every_route_and_body_field() -> None:
    app = app_with(FakeEngine())
    with served(app) as url:
        routes_part = httpx.get(f"{url}/docs").text.partition("<h1>Objects")[0]
    sections = routes_part.split("<h2>")[1:]
    sections_by_name = {section[: section.index("</h2>")]: section for section in sections}
    document = app.openapi()
    routes = [
        (f"{method.upper()} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    assert [name for name, _ in routes] == list(sections_by_name)
    for name, operation in routes:
        body = operation.get("requestBody")
        if body is None:
            assert "<table>" not in sections_by_name[name]
            continue
        reference = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        for field in document["components"]["schemas"][reference]["properties"]:
            assert f"<td>{field}</td>" in sections_by_name[name]


def test_the_docs_page_has_every_field_of_nested_objects() -> None:
    app = app_with(FakeEngine())
    with served(app) as url:
        objects = httpx.get(f"{url}/docs").text.partition("<h1>Objects")[2].split("<h3 ")[1:]
    sections_by_name = {re.findall(r'id="([^"]*)"', text)[0]: text for text in objects}
    assert {"SamplingBody", "Message", "Turn", "ToolChoice", "ResponseFormat"} <= set(
        sections_by_name
    )
    schemas = app.openapi()["components"]["schemas"]
    for name, text in sections_by_name.items():
        for field in schemas[name].get("properties", {}):
            assert f"<td>{field}</td>" in text
    assert "<td>max_new_tokens</td><td>integer, at least 0" in sections_by_name["SamplingBody"]


def test_a_field_shows_types_limits_and_required() -> None:
    app = app_with(FakeEngine())
    with served(app) as url:
        text = httpx.get(f"{url}/docs").text
    assert "<td>top_p</td><td>number, above 0, at most 1 or null</td><td></td>" in text
    assert "<td>required</td>" in text
    assert "integer, at least -9223372036854774784, at most 9223372036854774784 or null" in text


def test_redoc_is_disabled() -> None:
    with served(app_with(FakeEngine())) as url:
        assert httpx.get(f"{url}/redoc").status_code == 404
