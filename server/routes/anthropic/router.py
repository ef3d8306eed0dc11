"""Implements /v1/messages and /v1/messages/count_tokens."""

from collections.abc import Sequence

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.errors.api_errors import ANTHROPIC_PATH, ApiError
from server.generation.chat_requests import ChatProcessor
from server.generation.deltas import CompletionOutput
from server.parsers.message_parts import parse_complete
from server.protocol.anthropic import CountBody, MessagesBody
from server.protocol.model_name import check_model
from server.routes.anthropic.objects import MessageBuilder, MessageEncoder
from server.routes.body_route import BodyRoute, JsonBody
from server.routes.openapi_errors import ANTHROPIC_ERRORS, COMPLETION
from server.routes.responder import Responder
from server.routes.sse_dialects import ANTHROPIC
from server.text.chat_template import ChatExtras


def anthropic_routes(
    *,
    responder: Responder,
    chats: ChatProcessor,
    served_name: str,
) -> APIRouter:
    """Create the routes."""
    router = APIRouter(prefix=ANTHROPIC_PATH, responses=ANTHROPIC_ERRORS, route_class=BodyRoute)

    def extras(body: CountBody) -> ChatExtras:
        return ChatExtras(
            tools=body.template_tools,
            template_kwargs=chats.reasoning_kwargs(body.reasoning()),
            continue_final_message=body.continue_final_message,
        )

    @router.post("", response_model=None, responses=COMPLETION)
    async def messages(body: JsonBody[MessagesBody], request: Request) -> Response:
        _check_thread(body)
        check_model(body.model, served_name)
        message_id = f"msg_{request.state.request_id}"
        chat = await chats.tokenize(
            body.chat(),
            body,
            names=(message_id, request.state.request_id),
            extras=extras(body),
            tool_choice=body.tool_choice_mode(),
        )
        tokenized, new_parser = chat.tokenized, chat.new_parser
        builder = MessageBuilder(message_id, served_name, tokenized)
        if body.stream:
            encoder = MessageEncoder(builder, new_parser())
            return await responder.stream(request, [tokenized], encoder, dialect=ANTHROPIC)

        def build(outputs: Sequence[CompletionOutput]) -> object:
            (output,) = outputs
            return builder.message(parse_complete(new_parser(), output.text), output.finish)

        return await responder.whole(request, [tokenized], build)

    @router.post("/count_tokens")
    async def count_tokens(body: JsonBody[CountBody]) -> dict[str, int]:
        check_model(body.model, served_name)
        return {"input_tokens": await chats.count_tokens(body.chat(), extras(body))}

    return router


def _check_thread(body: CountBody) -> None:
    """Refuse a thread in the form on which the SDK's tool runner sends the whole conversation."""
    if body.thread is not None:
        raise ApiError(
            "'thread' is not supported: this server keeps no conversations; send all messages",
            param="thread",
            code="unsupported_field",
            details={"error_code": "thread_unsupported_request", "unsupported": ["thread"]},
        )
