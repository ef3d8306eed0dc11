"""The OpenAI routes: /v1/completions, /v1/chat/completions and /v1/models."""

import time
from dataclasses import replace

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from server.generation.chat_requests import ChatProcessor
from server.generation.generator import TextGenerator
from server.generation.input_processor import (
    Field,
    InputProcessor,
    TokenizedRequest,
    check_num_answers,
)
from server.options import ServerOptions
from server.parsers.message_parts import NewParser, PlainText
from server.protocol.model_name import check_model, unknown_model
from server.protocol.openai import ChatBody, CompletionBody, OpenAIBody
from server.routes.logprobs import LogprobForms
from server.routes.openai_logprobs import LogprobFormatter
from server.routes.openai_objects import CHAT, COMPLETION, Api, Form, OpenAIEncoder
from server.routes.openapi_errors import ANSWER
from server.routes.sse import EventStream, unless_gone
from server.structured_output.output_grammar import OutputGrammar
from server.text.tokenizer import ChatExtras, TextCodec


def openai_routes(
    *,
    answers: TextGenerator,
    input_processor: InputProcessor,
    chats: ChatProcessor,
    text: TextCodec,
    options: ServerOptions,
    max_len: int,
) -> APIRouter:
    """max_len, in tokens, is what /v1/models reports as the model's."""
    router = APIRouter(prefix="/v1")
    forms = LogprobForms(text=text.tokens)
    model = {
        "id": options.served_name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "dspark",
        "max_model_len": max_len,
    }

    async def respond(
        request: Request,
        body: OpenAIBody,
        asks: list[TokenizedRequest],
        api: Api,
        new_parser: NewParser,
    ) -> Response:
        form = Form(
            api,
            request.state.request_id,
            options.served_name,
            asks,
            new_parser=new_parser,
            with_speculation=bool(body.return_speculation),
            num_choices=body.num_choices,
            logprobs=LogprobFormatter(forms, body.logprob_options()),
        )
        if body.stream:
            deltas = answers.deltas(
                asks,
                silence_s=options.keepalive_s,
                record=request.state.record,
                token_by_token=body.streaming.token_by_token,
            )
            encoder = OpenAIEncoder(form, body.streaming)
            return await EventStream.start(request, deltas, encoder)
        whole = await unless_gone(request.receive, answers.whole(asks, record=request.state.record))
        return JSONResponse(form.whole(whole))

    @router.post("/completions", response_model=None, responses=ANSWER)
    async def completions(body: CompletionBody, request: Request) -> Response:
        check_model(body.model, options.served_name)
        asks: list[TokenizedRequest] = []
        prompts = body.prompts()
        for i, prompt in enumerate(prompts):
            many = len(prompts) > 1
            field = Field(f"prompt.{i}" if many else "prompt")
            names = _names("cmpl", request.state.request_id, i if many else None)
            ask = await input_processor.ask(
                prompt, body, names=names, field=field, logprobs=body.logprob_options()
            )
            ask = await input_processor.keeping_to(
                ask, OutputGrammar.of_content(body.grammar_spec())
            )
            if body.echo:
                ids = ask.prompt_ids
                ask = replace(ask, echo=prompt if isinstance(prompt, str) else text.decode(ids))
            asks += ask.choices(body.num_choices)
        check_num_answers(len(asks), param="n")
        return await respond(request, body, asks, COMPLETION, PlainText)

    @router.post("/chat/completions", response_model=None, responses=ANSWER)
    async def chat_completions(body: ChatBody, request: Request) -> Response:
        check_model(body.model, options.served_name)
        chat = await chats.tokenize(
            body.messages,
            body,
            names=_names("chatcmpl", request.state.request_id, None),
            extras=ChatExtras(tools=body.offered, template_kwargs=body.chat_template_kwargs or {}),
            tool_choice=body.tool_choice_mode(),
            logprobs=body.logprob_options(),
        )
        asks = chat.tokenized.choices(body.num_choices)
        return await respond(request, body, asks, CHAT, chat.new_parser)

    @router.get("/models")
    async def models() -> dict[str, object]:
        return {"object": "list", "data": [model]}

    @router.get("/models/{name:path}")
    async def one_model(name: str) -> dict[str, object]:
        if name != options.served_name:
            raise unknown_model(name, options.served_name)
        return model

    return router


def _names(kind: str, request_id: str, index: int | None) -> tuple[str, ...]:
    """A choice's own id where there are several, the response's id, and X-Request-Id."""
    names = (f"{kind}-{request_id}", request_id)
    return names if index is None else (f"{request_id}-{index}", *names)
