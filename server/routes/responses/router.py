"""Implements /v1/responses."""

from collections.abc import Sequence
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.errors.api_errors import ApiError
from server.generation.chat_requests import ChatProcessor
from server.generation.deltas import CompletionOutput
from server.generation.generator import TextGenerator
from server.protocol.model_name import check_model
from server.protocol.responses import ITEMS, Item, ReferenceItem, ResponsesBody, chat_of
from server.routes import openapi_errors
from server.routes.body_route import BodyRoute, JsonBody
from server.routes.logprobs import LogprobSerializer
from server.routes.responder import Responder
from server.routes.responses.objects import Event, ResponseEncoder, new_id, new_response
from server.routes.responses.store import ResponseStore, StoredResponse, with_ids
from server.routes.sse_dialects import responses_dialect
from server.text.chat_template import ChatExtras
from server.text.tokenizer import TextCodec


def responses_routes(
    *,
    responder: Responder,
    generator: TextGenerator,
    chats: ChatProcessor,
    text: TextCodec,
    served_name: str,
    store: ResponseStore,
    replica: str | None = None,
) -> APIRouter:
    """Create the routes. Responses are kept in the store, for the key that made them.

    replica: name of this process in a deployment; ids carry it.
    """
    router = APIRouter(prefix="/v1/responses", route_class=BodyRoute)
    serializer = LogprobSerializer(text=text.tokens)

    @router.post("", response_model=None, responses=openapi_errors.COMPLETION)
    async def create(body: JsonBody[ResponsesBody], request: Request) -> Response:
        check_model(body.model, served_name)
        owner = request.state.owner
        if body.store:
            store.check_is_on("store")
        own = _resolve(body.items(), store, owner)
        history: tuple[Item, ...] = ()
        if body.previous_response_id is not None:
            previous = store.get(owner, body.previous_response_id, param="previous_response_id")
            history = previous.conversation
        tools = body.function_tools()
        messages = chat_of([*history, *own], body.instructions)
        if not messages:
            raise ApiError("'input' must have a message; found reasoning alone", param="input")
        response_id = new_id("resp", replica)
        chat = await chats.tokenize(
            messages,
            body,
            names=(response_id, request.state.request_id),
            extras=ChatExtras(
                tools=tools.template_tools,
                template_kwargs={
                    **chats.reasoning_kwargs(body.reasoning_request()),
                    **(body.chat_template_kwargs or {}),
                },
            ),
            tool_choice=tools.tool_choice_mode(),
            logprobs=body.logprob_options(),
        )
        is_stored = store.is_on and body.store is not False

        def keep(response: Event) -> None:
            if is_stored:
                output = ITEMS.validate_python(response["output"])
                inputs = with_ids(own, [new_id("item", replica) for _ in own])
                store.put(owner, StoredResponse(response, inputs, (*history, *own, *output)))

        encoder = ResponseEncoder(
            new_response(body, chat.tokenized, model=served_name, is_stored=is_stored),
            chat.new_parser(),
            logprobs=serializer if body.logprob_options() is not None else None,
            count_tokens=lambda reasoning: len(text.encode(reasoning, add_special_tokens=False)),
            on_end=keep,
            replica=replica,
        )
        store.begin(owner, encoder.response)
        end = partial(store.end, owner, response_id)
        if body.stream:
            dialect = responses_dialect(encoder.errors)
            return await responder.stream(
                request, [chat.tokenized], encoder, dialect=dialect, on_end=end
            )

        def build(outputs: Sequence[CompletionOutput]) -> object:
            for _ in encoder.encode(0, outputs[0]):
                pass  # the response keeps what the events carry
            return encoder.response

        try:
            return await responder.whole(request, [chat.tokenized], build)
        finally:
            end()

    @router.get("/{response_id}")
    async def retrieve(response_id: str, request: Request) -> dict[str, object]:
        """Return a response that is kept, or that is being generated."""
        owner = request.state.owner
        running = store.running(owner, response_id)
        return running or store.get(owner, response_id, param="response_id").response

    @router.delete("/{response_id}")
    async def delete(response_id: str, request: Request) -> dict[str, object]:
        store.delete(request.state.owner, response_id, param="response_id")
        return {"id": response_id, "object": "response", "deleted": True}

    @router.post("/{response_id}/cancel")
    async def cancel(response_id: str, request: Request) -> dict[str, object]:
        """End a response that is being generated; its stream ends with what it has."""
        owner = request.state.owner
        running = store.running(owner, response_id)
        if running is None:
            status = store.get(owner, response_id, param="response_id").response["status"]
            raise ApiError(
                f"response {response_id!r} is no longer being generated; its status is {status}",
                param="response_id",
            )
        await generator.abort(response_id)
        return {**running, "status": "cancelled"}

    @router.get("/{response_id}/input_items")
    async def input_items(response_id: str, request: Request) -> dict[str, object]:
        """Return all items that were sent to make a response, in their order."""
        stored = store.get(request.state.owner, response_id, param="response_id")
        items = stored.input_items
        return {
            "object": "list",
            "data": items,
            "first_id": items[0]["id"],
            "last_id": items[-1]["id"],
            "has_more": False,
        }

    return router


def _resolve(items: Sequence[Item], store: ResponseStore, owner: str) -> tuple[Item, ...]:
    """Return the items; references are replaced by the items of earlier responses."""
    return tuple(
        store.item(owner, item.id, param=f"input.{i}.id")
        if isinstance(item, ReferenceItem)
        else item
        for i, item in enumerate(items)
    )
