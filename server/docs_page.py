"""/docs: every route and its fields on one plain page, made from the OpenAPI document.

FastAPI's own page fetches its program from another server, and is empty where there is no way out.
"""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

_STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse}td,th{text-align:left;padding:.15rem 1rem .15rem 0;"
    "vertical-align:top}h2{margin:2rem 0 .3rem;font:600 1.1rem monospace}"
)


def add_docs_page(app: FastAPI) -> None:
    """The app is to be made with docs_url=None."""

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(page(app.openapi()))


def page(document: Mapping[str, Any]) -> str:
    """An OpenAPI document as HTML that needs nothing else."""
    title = escape(document["info"]["title"])
    schemas = document.get("components", {}).get("schemas", {})
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>',
        f"<style>{_STYLE}</style><h1>{title}</h1>",
        '<p>All of it for programs: <a href="openapi.json">openapi.json</a>.</p>',
    ]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts += _operation(f"{method.upper()} {path}", operation, schemas)
    return "\n".join(parts) + "\n"


def _operation(
    name: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]
) -> Iterator[str]:
    yield f"<h2>{escape(name)}</h2>"
    if "description" in operation:
        yield f"<p>{escape(operation['description'])}</p>"
    schema = _body(operation, schemas)
    if schema is None:
        return
    required = schema.get("required", ())
    yield "<table><tr><th>field</th><th>takes</th><th></th></tr>"
    for field, kind in schema.get("properties", {}).items():
        must = "required" if field in required else ""
        yield f"<tr><td>{escape(field)}</td><td>{escape(_kind(kind))}</td><td>{must}</td></tr>"
    yield "</table>"


def _body(operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a JSON body may hold; None where there is none."""
    content = operation.get("requestBody", {}).get("content", {})
    schema: Mapping[str, Any] | None = content.get("application/json", {}).get("schema")
    if schema is None:
        return None
    reference = schema.get("$ref", "").rpartition("/")[2]
    return schemas[reference] if reference else schema


def _kind(schema: Mapping[str, Any]) -> str:
    """A field's values in words, as far as the document tells."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema or "const" in schema:
        return " or ".join(map(str, schema.get("enum", [schema.get("const")])))
    branches = schema.get("anyOf") or schema.get("oneOf") or ()
    if branches:
        return " or ".join(dict.fromkeys(map(_kind, branches)))
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    limits = [
        f"{word} {schema[key]:g}"
        for key, word in (
            ("minimum", "at least"),
            ("exclusiveMinimum", "above"),
            ("maximum", "at most"),
            ("exclusiveMaximum", "below"),
        )
        if key in schema
    ]
    return ", ".join([str(schema.get("type", "anything")), *limits])
