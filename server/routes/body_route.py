"""Reads and validates JSON bodies for the routes, in place of FastAPI's own reading."""

from collections.abc import Callable, Coroutine
from email.message import Message
from typing import Annotated, Any, TypeVar

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema
from starlette.requests import ClientDisconnect

from server.errors.api_errors import ApiError, ClientDisconnected
from server.errors.validation_errors import InvalidBody, quote
from server.http.auth import require_admin

T = TypeVar("T")


class _Validated:
    """Accepts an instance of the model, and describes the model in the OpenAPI document."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.json_or_python_schema(
            handler(source), core_schema.is_instance_schema(source)
        )


JsonBody = Annotated[T, _Validated()]  # of a route with the class BodyRoute


class BodyRoute(APIRoute):
    """Passes the validated model to a route with one JsonBody. Raises ApiError for any other.

    A route that depends on require_admin checks the key before it reads the body.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        model: type[BaseModel] = self.body_field.field_info.annotation  # type: ignore[assignment]

        needs_admin = any(each.dependency is require_admin for each in self.dependencies)

        async def read_and_handle(request: Request) -> Response:
            if needs_admin:
                require_admin(request)
            body = await _read(request, model)
            return await handle(_ReadRequest(request.scope, request.receive, body))

        return read_and_handle


class _ReadRequest(Request):
    """A request whose body is a validated model."""

    def __init__(self, scope: Any, receive: Any, body: BaseModel) -> None:
        super().__init__(scope, receive)
        self._model = body

    async def body(self) -> bytes:
        return b"{}"  # FastAPI calls json() unless this is empty

    async def json(self) -> Any:
        return self._model


async def _read(request: Request, model: type[BaseModel]) -> BaseModel:
    try:
        content = await request.body()
    except ClientDisconnect as error:
        raise ClientDisconnected from error
    if content and not _is_json(request.headers.get("content-type", "")):
        raise ApiError(
            "the body must be a JSON object sent with 'content-type: application/json'; "
            f"found {quote(content)}"
        )
    try:
        parsed: BaseModel = await request.app.state.body_parser.parse(content, model)
    except InvalidBody as error:
        message, encoding = error.message, request.headers.get("content-encoding")
        if error.code == "invalid_json" and encoding is not None:
            message += f": found 'content-encoding: {encoding}'; send it uncompressed"
        raise ApiError(message, param=error.param, code=error.code) from None
    return parsed


def _is_json(content_type: str) -> bool:
    parsed = Message()
    parsed["content-type"] = content_type
    kind = parsed.get_content_subtype()
    is_application = parsed.get_content_maintype() == "application"
    return is_application and (kind == "json" or kind.endswith("+json"))
