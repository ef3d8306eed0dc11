"""Responses match the OpenAPI document, and requests are accepted as it describes them."""

import json
from contextlib import nullcontext
from decimal import Decimal
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from pydantic_core import PydanticCustomError
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from server.protocol.openai import CompletionBody
from server.protocol.tools import select_tools
from tests.support.server.fakes import FakeEngine, app_with

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]

app = app_with(FakeEngine(), tool_parser="hermes", reasoning_parser="think")
schema = schemathesis.openapi.from_asgi("/openapi.json", app)
# Its cases hold one item more than each limit allows, a million in some lists.
schema.config.phases.coverage.enabled = False


@schema.parametrize()
@settings(max_examples=5, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_responses_match_the_openapi_document(case: schemathesis.Case) -> None:
    case.call_and_validate(checks=CHECKS)


@pytest.mark.slow
@schema.parametrize()
@settings(max_examples=700, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_fails_in_minutes_of_random_ones(case: schemathesis.Case) -> None:
    """About three minutes over all operations, with other requests in each run."""
    case.call_and_validate(checks=CHECKS)


def test_the_document_lists_only_200_and_default() -> None:
    operations = [op for path in app.openapi()["paths"].values() for op in path.values()]
    assert operations
    for operation in operations:
        assert set(operation["responses"]) == {"200", "default"}


NAMED = {"name": "f"}
ALLOWED = {"mode": "auto", "tools": [{"type": "function", **NAMED}]}


@pytest.mark.parametrize("body", ["ChatBody", "ResponsesBody"])
@pytest.mark.parametrize(
    ("choice", "is_valid"),
    [
        *((choice, True) for choice in (None, "none", "auto", "required")),
        ({"type": "function", "function": NAMED}, True),
        ({"type": "function", **NAMED}, True),
        ({"type": "allowed_tools", "allowed_tools": ALLOWED}, True),
        ({"type": "allowed_tools", **ALLOWED}, True),
        *((choice, False) for choice in ("any", 1, [], {}, {"type": "function"})),
        ({"type": "function", "function": {**NAMED, "x": 1}}, False),
        ({"type": "function", **NAMED, "x": 1}, False),
        ({"type": "allowed_tools", **ALLOWED, "tools": []}, False),
        ({"type": "allowed_tools", **ALLOWED, "mode": "none"}, False),
        ({"type": "allowed_tools", **ALLOWED, "tools": [{"type": "custom"}]}, False),
    ],
)
def test_a_tool_choice_is_accepted_as_described(body: str, choice: Any, is_valid: bool) -> None:
    described = app.openapi()["components"]["schemas"][body]["properties"]["tool_choice"]
    assert jsonschema_rs.validator_for(described).is_valid(choice) == is_valid
    with nullcontext() if is_valid else pytest.raises(PydanticCustomError):
        select_tools(choice, ["f"])


def test_a_64_bit_number_is_accepted_up_to_the_described_bounds() -> None:
    fields = app.openapi()["components"]["schemas"]["CompletionBody"]["properties"]
    for name in ("seed", "priority"):
        described = json.loads(json.dumps(fields[name]["anyOf"][0]), parse_float=Decimal)
        for bound in (described["minimum"], described["maximum"]):
            CompletionBody.model_validate({"prompt": "a", name: int(bound)})
