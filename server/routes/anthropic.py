"""Anthropic's routes: /v1/messages and its token counter."""

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from server.errors.api_errors import ANTHROPIC_PATH
from server.generation.chat_requests import ChatProcessor
from server.generation.generator import TextGenerator
from server.options import ServerOptions
from server.parsers.message_parts import read_whole
from server.protocol.anthropic import CountBody, MessagesBody
from server.protocol.model_name import check_model
from server.routes.anthropic_objects import Form, MessageEncoder
from server.routes.openapi_errors import ANSWER, ANTHROPIC_ERRORS
from server.routes.sse import EventStream, unless_gone
from server.routes.sse_dialects import ANTHROPIC
from server.text.tokenizer import ChatExtras


def anthropic_routes(
    *,
    answers: TextGenerator,
    chats: ChatProcessor,
    options: ServerOptions,
) -> APIRouter:
    router = APIRouter(prefix=ANTHROPIC_PATH, responses=ANTHROPIC_ERRORS)

    @router.post("", response_model=None, responses=ANSWER)
    async def messages(body: MessagesBody, request: Request) -> Response:
        check_model(body.model, options.served_name)
        message_id = f"msg_{request.state.request_id}"
        chat = await chats.tokenize(
            body.chat(),
            body,
            names=(message_id, request.state.request_id),
            extras=_extras(body),
            tool_choice=body.tool_choice_mode(),
        )
        ask, new_parser = chat.tokenized, chat.new_parser
        form = Form(message_id, options.served_name, ask)
        record = request.state.record
        if body.stream:
            deltas = answers.deltas([ask], silence_s=options.keepalive_s, record=record)
            return await EventStream.start(
                request, deltas, MessageEncoder(form, new_parser()), ANTHROPIC
            )
        (answer,) = await unless_gone(request.receive, answers.whole([ask], record=record))
        return JSONResponse(form.whole(read_whole(new_parser(), answer.text), answer.finish))

    @router.post("/count_tokens")
    async def count_tokens(body: CountBody) -> dict[str, int]:
        check_model(body.model, options.served_name)
        return {"input_tokens": await chats.count_tokens(body.chat(), _extras(body))}

    return router


def _extras(body: CountBody) -> ChatExtras:
    return ChatExtras(tools=body.offered, goes_on=body.goes_on)
