"""The OpenAI routes: /v1/completions, /v1/chat/completions and /v1/models."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from engine import Finish
from server.answers import Answers, Delta
from server.asking import Ask, Asker, Field
from server.model_name import check_model, unknown_model
from server.options import ServerOptions
from server.schemas_openai import ChatBody, CompletionBody, OpenAIBody, StreamOptions
from server.speculation import speculation_block
from server.stream import EventStream, unless_gone
from server.text import ChatExtras


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
        form = _Form(
            api,
            request.state.request_id,
            options.served_name,
            with_speculation=bool(body.return_speculation),
        )
        if body.stream:
            deltas = answers.deltas(
                asks,
                silence_s=options.keepalive_s,
                record=request.state.record,
                token_by_token=body.streaming.token_by_token,
            )
            encoder = _OpenAIEncoder(form, asks, body.streaming)
            return await EventStream.start(request, deltas, encoder)
        whole = await unless_gone(request.receive, answers.whole(asks, record=request.state.record))
        choices = [form.choice(i, api.whole_text(a.text), a.finish) for i, a in enumerate(whole)]
        usage = _usage([answer.finish for answer in whole])
        return JSONResponse(form.whole(choices, usage))

    @router.post("/completions", response_model=None)
    async def completions(body: CompletionBody, request: Request) -> Response:
        check_model(body.model, options.served_name)
        prompts, asks = body.prompts(), []
        for i, prompt in enumerate(prompts):
            many = len(prompts) > 1
            field = Field(f"prompt.{i}" if many else "prompt")
            names = _names("cmpl", request.state.request_id, i if many else None)
            asks.append(await asker.ask(prompt, body, names=names, field=field))
        return await respond(request, body, asks, _COMPLETION)

    @router.post("/chat/completions", response_model=None)
    async def chat_completions(body: ChatBody, request: Request) -> Response:
        check_model(body.model, options.served_name)
        names = _names("chatcmpl", request.state.request_id, None)
        ask = await asker.ask(
            body.messages,
            body,
            names=names,
            field=Field("messages"),
            extras=ChatExtras(template_kwargs=body.chat_template_kwargs or {}),
        )
        return await respond(request, body, [ask], _CHAT)

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

    def __init__(self, api: _Api, request_id: str, model: str, *, with_speculation: bool) -> None:
        self.api = api
        self._with_speculation = with_speculation
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

    def choice(
        self, index: int, said: Mapping[str, object], finish: Finish | None
    ) -> dict[str, object]:
        """A choice as a whole, or with what it gained."""
        choice: dict[str, object] = {
            "index": index,
            **said,
            "logprobs": None,
            "finish_reason": finish.reason.value if finish else None,
        }
        if finish is not None:
            choice["stop_reason"] = finish.matched  # vLLM's: which stop it was
            if self._with_speculation:
                choice["speculation"] = speculation_block(finish.speculation)
        return choice


class _OpenAIEncoder:
    """Chunks of new text; the last of each choice has its finish reason."""

    def __init__(self, form: _Form, asks: Sequence[Ask], streaming: StreamOptions) -> None:
        self._form = form
        self._asks = asks
        self._streaming = streaming
        self._num_tokens = 0  # of all choices
        self._unopened = set(range(len(asks))) if form.api.opening else set()
        self._finishes: list[Finish] = []

    def encode(self, index: int, delta: Delta) -> Iterator[Mapping[str, object]]:
        self._num_tokens += len(delta.token_ids)
        opening = self._form.api.opening
        if opening is not None and index in self._unopened:
            self._unopened.discard(index)
            yield self._chunk(self._form.choice(index, opening, None))
        if delta.finish is not None:
            self._finishes.append(delta.finish)
        if delta.text or delta.finish is not None or self._streaming.token_by_token:
            said = self._form.api.chunk_text(delta.text)
            yield self._chunk(self._form.choice(index, said, delta.finish))

    def end(self) -> Iterator[Mapping[str, object]]:
        if self._streaming.include_usage:
            yield {**self._form.chunk([]), "usage": _usage(self._finishes)}

    def _chunk(self, choice: Mapping[str, object]) -> Mapping[str, object]:
        chunk = self._form.chunk([choice])
        if self._streaming.continuous_usage_stats:
            return {**chunk, "usage": self._usage_so_far()}
        return {**chunk, "usage": None} if self._streaming.include_usage else chunk

    def _usage_so_far(self) -> dict[str, object]:
        prompt = sum(len(ask.prompt_ids) for ask in self._asks)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self._num_tokens,
            "total_tokens": prompt + self._num_tokens,
        }


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
