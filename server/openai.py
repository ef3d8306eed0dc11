"""The OpenAI routes: /v1/completions, /v1/chat/completions and /v1/models."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from engine import Finish
from server.answers import Answers, Delta
from server.asking import Ask, Asker, Field
from server.errors import ApiError
from server.options import ServerOptions
from server.schemas_openai import ChatBody, CompletionBody, OpenAIBody
from server.stream import EventStream, unless_gone


def openai_routes(
    *, answers: Answers, asker: Asker, options: ServerOptions, max_len: int
) -> APIRouter:
    """max_len, in tokens, is what /v1/models reports as the model's."""
    router = APIRouter(prefix="/v1")
    model = {
        "id": options.served_name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "dspark",
        "max_model_len": max_len,
    }

    async def respond(request: Request, body: OpenAIBody, asks: list[Ask], api: "_Api") -> Response:
        form = _Form(api, request.state.request_id, options.served_name)
        if body.stream:
            deltas = answers.deltas(
                asks, silence_s=options.keepalive_s, record=request.state.record
            )
            encoder = _OpenAIEncoder(form, asks, with_usage=body.wants_usage_chunk)
            return await EventStream.start(request, deltas, encoder)
        whole = await unless_gone(request.receive, answers.whole(asks, record=request.state.record))
        choices = [form.choice(i, a.text, a.finish) for i, a in enumerate(whole)]
        usage = _usage([answer.finish for answer in whole])
        return JSONResponse(form.whole(choices, usage))

    @router.post("/completions", response_model=None)
    async def completions(body: CompletionBody, request: Request) -> Response:
        _check_model(body, options.served_name)
        prompts, asks = body.prompts(), []
        for i, prompt in enumerate(prompts):
            many = len(prompts) > 1
            field = Field(f"prompt.{i}" if many else "prompt")
            names = _names("cmpl", request.state.request_id, i if many else None)
            asks.append(await asker.ask(prompt, body, names=names, field=field))
        return await respond(request, body, asks, _COMPLETION)

    @router.post("/chat/completions", response_model=None)
    async def chat_completions(body: ChatBody, request: Request) -> Response:
        _check_model(body, options.served_name)
        names = _names("chatcmpl", request.state.request_id, None)
        ask = await asker.ask(body.messages, body, names=names, field=Field("messages"))
        return await respond(request, body, [ask], _CHAT)

    @router.get("/models")
    async def models() -> dict[str, object]:
        return {"object": "list", "data": [model]}

    @router.get("/models/{name:path}")
    async def one_model(name: str) -> dict[str, object]:
        if name != options.served_name:
            raise _unknown_model(name, options.served_name)
        return model

    return router


def _check_model(body: OpenAIBody, served: str) -> None:
    if body.model is not None and body.model != served:
        raise _unknown_model(body.model, served)


def _unknown_model(found: str, served: str) -> ApiError:
    return ApiError(
        f"model {found!r} is not served; accepted: {served!r}",
        status=404,
        param="model",
        code="model_not_found",
    )


def _names(kind: str, request_id: str, index: int | None) -> tuple[str, ...]:
    """A choice's own id where there are several, the response's id, and X-Request-Id."""
    names = (f"{kind}-{request_id}", request_id)
    return names if index is None else (f"{request_id}-{index}", *names)


@dataclass(frozen=True, slots=True)
class _Api:
    """What differs between the two APIs: words, and where a choice keeps its text."""

    id_prefix: str
    whole: str
    chunk: str
    whole_text: Callable[[str], dict[str, object]]
    chunk_text: Callable[[str], dict[str, object]]
    opening: dict[str, object] | None  # a choice's first chunk, if there is one before any text


_COMPLETION = _Api(
    id_prefix="cmpl",
    whole="text_completion",
    chunk="text_completion",
    whole_text=lambda text: {"text": text},
    chunk_text=lambda text: {"text": text},
    opening=None,
)
_CHAT = _Api(
    id_prefix="chatcmpl",
    whole="chat.completion",
    chunk="chat.completion.chunk",
    whole_text=lambda text: {"message": {"role": "assistant", "content": text, "refusal": None}},
    chunk_text=lambda text: {"delta": {"content": text} if text else {}},
    opening={"delta": {"role": "assistant", "content": ""}},
)


class _Form:
    """The parts of one response or stream that stay the same."""

    def __init__(self, api: _Api, request_id: str, model: str) -> None:
        self.api = api
        self._common = {
            "id": f"{api.id_prefix}-{request_id}",
            "created": int(time.time()),
            "model": model,
        }

    def whole(
        self, choices: Sequence[Mapping[str, object]], usage: Mapping[str, object]
    ) -> dict[str, object]:
        return {**self._common, "object": self.api.whole, "choices": choices, "usage": usage}

    def chunk(self, choices: Sequence[Mapping[str, object]]) -> dict[str, object]:
        return {**self._common, "object": self.api.chunk, "choices": choices}

    def choice(self, index: int, text: str, finish: Finish) -> dict[str, object]:
        return _choice(index, self.api.whole_text(text), finish)


def _choice(index: int, said: Mapping[str, object], finish: Finish | None) -> dict[str, object]:
    choice: dict[str, object] = {
        "index": index,
        **said,
        "logprobs": None,
        "finish_reason": finish.reason.value if finish else None,
    }
    if finish is not None:
        choice["stop_reason"] = finish.matched  # vLLM's: which stop it was
    return choice


class _OpenAIEncoder:
    """Chunks of new text; the last of each choice has its finish reason."""

    def __init__(self, form: _Form, asks: Sequence[Ask], *, with_usage: bool) -> None:
        self._form = form
        self._with_usage = with_usage
        self._unopened = set(range(len(asks))) if form.api.opening else set()
        self._finishes: list[Finish] = []

    def encode(self, index: int, delta: Delta) -> Iterator[Mapping[str, object]]:
        opening = self._form.api.opening
        if opening is not None and index in self._unopened:
            self._unopened.discard(index)
            yield self._chunk(_choice(index, opening, None))
        if delta.finish is not None:
            self._finishes.append(delta.finish)
        if delta.text or delta.finish is not None:
            said = self._form.api.chunk_text(delta.text)
            yield self._chunk(_choice(index, said, delta.finish))

    def end(self) -> Iterator[Mapping[str, object]]:
        if self._with_usage:
            yield {**self._form.chunk([]), "usage": _usage(self._finishes)}

    def _chunk(self, choice: Mapping[str, object]) -> Mapping[str, object]:
        chunk = self._form.chunk([choice])
        return {**chunk, "usage": None} if self._with_usage else chunk


def _usage(finishes: Sequence[Finish]) -> dict[str, object]:
    prompt = sum(finish.num_prompt_tokens for finish in finishes)
    output = sum(finish.num_output_tokens for finish in finishes)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {
            "cached_tokens": sum(finish.num_cached_tokens for finish in finishes)
        },
    }
