"""docs/http.md describes every route and field."""

import re

from server.protocol.anthropic import MessagesBody
from server.protocol.common import SamplingFields
from server.protocol.native import SamplingBody
from server.protocol.openai import ChatBody, CompletionBody
from server.protocol.responses import ResponsesBody
from tests.support.paths import ROOT
from tests.support.server.fakes import FakeEngine, app_with

TEXT = (ROOT / "docs" / "http.md").read_text()


def test_described_routes_are_the_existing_routes() -> None:
    described = set(re.findall(r"`(GET|POST|DELETE) (/[^` ]*)`", TEXT))
    paths = app_with(FakeEngine()).openapi()["paths"]
    routes = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert described == routes


def test_every_sampling_field_is_described() -> None:
    for name in (*SamplingFields.model_fields, *SamplingBody.model_fields):
        assert f"| `{name}`" in TEXT or f"`{name}` |" in TEXT, name


def test_every_field_without_effect_is_named() -> None:
    bodies = (CompletionBody, ChatBody, MessagesBody, ResponsesBody)
    for name in frozenset().union(*(body.IGNORED for body in bodies)):
        assert f"`{name}`" in TEXT, name
