"""Serves /docs: all routes and their fields on one page, built from the OpenAPI document.

FastAPI's page loads scripts from another server and is empty without internet access.
"""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

_STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse}td,th{text-align:left;padding:.15rem 1rem .15rem 0;"
    "vertical-align:top}h2,h3{margin:2rem 0 .3rem;font:600 1.1rem monospace}"
)


def add_docs_page(app: FastAPI) -> None:
    """Add the route to an app created with docs_url=None."""

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(page(app.openapi()))


def page(document: Mapping[str, Any]) -> str:
    """Return an OpenAPI document as self-contained HTML."""
    title = escape(document["info"]["title"])
    schemas = document.get("components", {}).get("schemas", {})
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>',
        f"<style>{_STYLE}</style><h1>{title}</h1>",
        '<p>Machine-readable: <a href="openapi.json">openapi.json</a>.</p>',
    ]
    bodies = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            bodies.append(_body(operation, schemas))
            parts += _operation(f"{method.upper()} {path}", operation, bodies[-1])
    parts.append("<h1>Objects in bodies</h1>")
    for name in _names_in([body for body in bodies if body is not None], schemas):
        parts.append(f'<h3 id="{escape(name)}">{escape(name)}</h3>')
        parts += _table(schemas[name])
    return "\n".join(parts) + "\n"


def _operation(
    name: str, operation: Mapping[str, Any], body: Mapping[str, Any] | None
) -> Iterator[str]:
    yield f"<h2>{escape(name)}</h2>"
    if "description" in operation:
        yield f"<p>{escape(operation['description'])}</p>"
    if body is not None:
        yield from _table(body)


def _table(schema: Mapping[str, Any]) -> Iterator[str]:
    if "properties" not in schema:
        yield f"<p>{_kind(schema)}</p>"
        return
    required = schema.get("required", ())
    yield "<table><tr><th>field</th><th>takes</th><th></th></tr>"
    for field, kind in schema["properties"].items():
        must = "required" if field in required else ""
        yield f"<tr><td>{escape(field)}</td><td>{_kind(kind)}</td><td>{must}</td></tr>"
    yield "</table>"


def _body(operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the schema of the JSON body; None without one."""
    content = operation.get("requestBody", {}).get("content", {})
    schema: Mapping[str, Any] | None = content.get("application/json", {}).get("schema")
    if schema is None:
        return None
    return schemas[_name(schema)] if "$ref" in schema else schema


def _names_in(found: list[Any], schemas: Mapping[str, Any]) -> list[str]:
    """Return the names of all referenced schemas, each once."""
    names: dict[str, None] = {}
    while found:
        part = found.pop(0)
        if isinstance(part, Mapping):
            if "$ref" in part and _name(part) not in names:
                names[_name(part)] = None
                found.append(schemas[_name(part)])
            found += part.values()
        elif isinstance(part, list):
            found += part
    return list(names)


def _name(schema: Mapping[str, Any]) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


def _kind(schema: Mapping[str, Any]) -> str:
    """Return a field's accepted values as HTML."""
    if "$ref" in schema:
        name = escape(_name(schema))
        return f'<a href="#{name}">{name}</a>'
    if "enum" in schema or "const" in schema:
        return " or ".join(
            escape(str(value)) for value in schema.get("enum", [schema.get("const")])
        )
    branches = schema.get("anyOf") or schema.get("oneOf") or ()
    if branches:
        return " or ".join(dict.fromkeys(map(_kind, branches)))
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    limits = [
        f"{word} {_number(schema[key])}"
        for key, word in (
            ("minimum", "at least"),
            ("exclusiveMinimum", "above"),
            ("maximum", "at most"),
            ("exclusiveMaximum", "below"),
        )
        if key in schema
    ]
    return ", ".join([escape(str(schema.get("type", "anything"))), *limits])


def _number(value: float) -> str:
    """Format a number; an integer keeps all digits."""
    return str(int(value)) if value == int(value) else f"{value:g}"
