"""Responses match the OpenAPI document."""

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

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
