"""Requests that are made from the OpenAPI document are answered as the document says."""

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


@schema.parametrize()
@settings(max_examples=5, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_what_is_answered_is_documented(case: schemathesis.Case) -> None:
    case.call_and_validate(checks=CHECKS)


def test_the_document_promises_no_status_that_is_never_sent() -> None:
    operations = [op for path in app.openapi()["paths"].values() for op in path.values()]
    assert operations
    for operation in operations:
        assert set(operation["responses"]) == {"200", "default"}
