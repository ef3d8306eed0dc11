"""Anthropic's routes: /v1/messages and its token counter."""

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from server.answer_reading import AnswerReading
from server.answers import Answers
from server.anthropic_form import Form, MessageEncoder
from server.asking import Asker, Field
from server.dialects import ANTHROPIC
from server.documented import ANSWER, ANTHROPIC_ERRORS
from server.errors import ANTHROPIC_PATH
from server.model_name import check_model
from server.options import ServerOptions
from server.parts import read_whole
from server.schemas_anthropic import CountBody, MessagesBody
from server.stream import EventStream, unless_gone
from server.text import ChatExtras


def anthropic_routes(
    *, answers: Answers, asker: Asker, reading: AnswerReading, options: ServerOptions
) -> APIRouter:
    router = APIRouter(prefix=ANTHROPIC_PATH, responses=ANTHROPIC_ERRORS)

    def extras(body: CountBody) -> ChatExtras:
        if body.offered:
            reading.check_tools()
        return ChatExtras(tools=body.offered, goes_on=body.goes_on)

    @router.post("", response_model=None, responses=ANSWER)
    async def messages(body: MessagesBody, request: Request) -> Response:
        check_model(body.model, options.served_name)
        message_id = f"msg_{request.state.request_id}"
        ask = await asker.ask(
            body.chat(),
            body,
            names=(message_id, request.state.request_id),
            field=Field("messages"),
            extras=extras(body),
            kept_ids=reading.kept_ids(has_tools=bool(body.offered)),
        )
        frame = reading.frame(None, body.call_wish(), prompt_ids=ask.prompt_ids)
        ask = await asker.keeping_to(ask, frame)
        new_parser = reading.new_parser(
            tools=[tool["function"]["name"] for tool in body.offered], prompt_ids=ask.prompt_ids
        )
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
        ids = await asker.encode(body.chat(), field=Field("messages"), extras=extras(body))
        return {"input_tokens": len(ids)}

    return router
