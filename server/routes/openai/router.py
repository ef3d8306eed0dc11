"""Implements /v1/completions, /v1/chat/completions and /v1/models."""

import time
from dataclasses import replace
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.generation.chat_requests import ChatProcessor
from server.generation.input_processor import (
    FieldNames,
    InputProcessor,
    TokenizedRequest,
    check_num_choices,
)
from server.parsers.message_parts import NewParser, PlainTextParser
from server.protocol.engine_options import effort_of
from server.protocol.model_name import check_model, unknown_model
from server.protocol.openai import ChatBody, CompletionBody, OpenAIBody
from server.routes import openapi_errors
from server.routes.anthropic.objects import anthropic_model
from server.routes.body_route import BodyRoute, JsonBody
from server.routes.logprobs import LogprobSerializer
from server.routes.openai.logprobs import ChoiceLogprobs
from server.routes.openai.objects import CHAT, COMPLETION, Api, OpenAIEncoder, ResponseBuilder
from server.routes.responder import Responder
from server.structured_output.output_grammar import OutputGrammar
from server.text.chat_template import ChatExtras
from server.text.tokenizer import TextCodec


def openai_routes(
    *,
    responder: Responder,
    input_processor: InputProcessor,
    chats: ChatProcessor,
    text: TextCodec,
    served_name: str,
    max_len: int,
) -> APIRouter:
    """Create the routes. max_len: context length in tokens, reported by /v1/models."""
    router = APIRouter(prefix="/v1", route_class=BodyRoute)
    serializer = LogprobSerializer(text=text.tokens)
    model = {
        "id": served_name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "dspark",
        "max_model_len": max_len,
    }

    async def respond(
        request: Request,
        body: OpenAIBody,
        tokenized: list[TokenizedRequest],
        api: Api,
        new_parser: NewParser,
    ) -> Response:
        builder = ResponseBuilder(
            api,
            request.state.request_id,
            served_name,
            tokenized,
            new_parser=new_parser,
            new_logprobs=partial(
                ChoiceLogprobs,
                serializer=serializer,
                text=text,
                options=body.logprob_options(),
                is_chat=api is CHAT,
                num_prompt_top=body.prompt_logprobs,
            ),
            with_speculation=bool(body.return_speculation),
            with_rounds=bool(body.return_rounds),
            num_choices=body.num_choices,
        )
        if not body.stream:
            return await responder.whole(request, tokenized, builder.response)
        encoder = OpenAIEncoder(builder, body.streaming)
        return await responder.stream(
            request, tokenized, encoder, token_by_token=body.streaming.token_by_token
        )

    @router.post("/completions", response_model=None, responses=openapi_errors.COMPLETION)
    async def completions(body: JsonBody[CompletionBody], request: Request) -> Response:
        check_model(body.model, served_name)
        requests: list[TokenizedRequest] = []
        prompts = body.prompts()
        is_list = len(prompts) > 1
        for i, prompt in enumerate(prompts):
            tokenized = await input_processor.process(
                prompt,
                body,
                names=_names("cmpl", request.state.request_id, i if is_list else None),
                field=FieldNames(f"prompt.{i}" if is_list else "prompt"),
                logprobs=body.engine_logprobs(),
            )
            grammar = OutputGrammar.of_content(body.grammar_spec())
            tokenized = await input_processor.with_grammar(tokenized, grammar)
            if body.echo:
                ids = tokenized.prompt_ids
                echo = prompt if isinstance(prompt, str) else text.decode(ids)
                tokenized = replace(tokenized, echo=echo)
            requests += tokenized.choices(body.num_choices)
        check_num_choices(len(requests), param="n")
        return await respond(request, body, requests, COMPLETION, PlainTextParser)

    @router.post("/chat/completions", response_model=None, responses=openapi_errors.COMPLETION)
    async def chat_completions(body: JsonBody[ChatBody], request: Request) -> Response:
        check_model(body.model, served_name)
        chat = await chats.tokenize(
            body.messages,
            body,
            names=_names("chatcmpl", request.state.request_id, None),
            extras=ChatExtras(
                tools=body.template_tools,
                template_kwargs={
                    **chats.reasoning_kwargs(effort_of("reasoning_effort", body.reasoning_effort)),
                    **(body.chat_template_kwargs or {}),
                },
                continue_final_message=bool(body.continue_final_message),
                add_generation_prompt=body.add_generation_prompt is not False,
            ),
            tool_choice=body.tool_choice_mode(),
            logprobs=body.engine_logprobs(),
        )
        choices = chat.tokenized.choices(body.num_choices)
        return await respond(request, body, choices, CHAT, chat.new_parser)

    @router.get("/models")
    async def models(request: Request) -> dict[str, object]:
        """List the served model; in Anthropic's shape for its client."""
        if _is_anthropic(request):
            entry = anthropic_model(served_name, max_len)
            first_last = {"first_id": served_name, "last_id": served_name, "has_more": False}
            return {"data": [entry], **first_last}
        return {"object": "list", "data": [model]}

    @router.get("/models/{name:path}")
    async def one_model(name: str, request: Request) -> dict[str, object]:
        if name != served_name:
            raise unknown_model(name, served_name)
        return anthropic_model(served_name, max_len) if _is_anthropic(request) else model

    return router


def _is_anthropic(request: Request) -> bool:
    return "anthropic-version" in request.headers


def _names(kind: str, request_id: str, index: int | None) -> tuple[str, ...]:
    """Return a prompt's own id where there are several, the response's id, and X-Request-Id."""
    names = (f"{kind}-{request_id}", request_id)
    return names if index is None else (f"{request_id}-{index}", *names)
