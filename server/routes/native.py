"""The native routes: /generate with SGLang's field names, /tokenize and /detokenize."""

from collections.abc import Iterator, Mapping, Sequence

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from engine import Finish, FinishReason, TokenLogprob
from server.generation.deltas import CompletionOutput, Delta
from server.generation.generator import TextGenerator
from server.generation.input_processor import Field, InputProcessor, TokenizedRequest
from server.generation.native_requests import tokenize_native
from server.options import ServerOptions
from server.protocol.engine_options import LogprobOptions
from server.protocol.native import DetokenizeBody, GenerateBody, TokenizeBody
from server.routes.logprobs import LogprobForms
from server.routes.openapi_errors import ANSWER
from server.routes.sse import EventStream, unless_gone
from server.text.tokenizer import ChatExtras, TextCodec


def native_routes(
    *,
    answers: TextGenerator,
    input_processor: InputProcessor,
    text: TextCodec,
    options: ServerOptions,
    max_len: int,
) -> APIRouter:
    """max_len, in tokens, is what /tokenize reports as the model's."""
    router = APIRouter()
    forms = LogprobForms(text=text.tokens)

    @router.post("/generate", response_model=None, responses=ANSWER)
    async def generate(body: GenerateBody, request: Request) -> Response:
        asks = await tokenize_native(input_processor, body, request.state.request_id)
        is_many = body.is_many or len(asks) > 1
        told = _Told(forms, body.logprob_options(), with_text=body.return_text_in_logprobs)
        if body.stream:
            deltas = answers.deltas(
                asks,
                silence_s=options.keepalive_s,
                record=request.state.record,
                token_by_token=body.token_by_token,
            )
            encoder = _NativeEncoder(
                asks, is_many=is_many, is_incremental=body.incremental_stream_output, told=told
            )
            return await EventStream.start(request, deltas, encoder)
        whole = await unless_gone(request.receive, answers.whole(asks, record=request.state.record))
        results = [_result(ask, answer, told) for ask, answer in zip(asks, whole, strict=True)]
        return JSONResponse(results if is_many else results[0])

    @router.post("/tokenize")
    async def tokenize(body: TokenizeBody) -> dict[str, object]:
        name = next(n for n in ("text", "prompt", "messages") if getattr(body, n) is not None)
        tokens = await input_processor.encode(
            getattr(body, name),
            field=Field(name),
            add_special_tokens=body.add_special_tokens,
            extras=ChatExtras(template_kwargs=body.chat_template_kwargs or {}),
        )
        return {"tokens": tokens, "count": len(tokens), "max_model_len": max_len}

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeBody) -> dict[str, object]:
        input_processor.check_vocabulary(body.tokens, param="tokens")
        return {"text": text.decode(body.tokens, skip_special_tokens=body.skip_special_tokens)}

    return router


class _Told:
    """The parts of meta_info that tell log probabilities, if a request asks for them."""

    def __init__(
        self, forms: LogprobForms, asked: LogprobOptions | None, *, with_text: bool
    ) -> None:
        self._forms = forms
        self._asked = asked
        self._with_text = with_text

    def meta(
        self,
        ask: TokenizedRequest,
        logprobs: Sequence[TokenLogprob],
        prompt_logprobs: Sequence[TokenLogprob],
        *,
        has_begun: bool = False,
    ) -> dict[str, object]:
        """has_begun: the prompt has been told of before."""
        if self._asked is None:
            return {}
        output = [(entry.token_id, entry) for entry in logprobs]
        prompt: list[tuple[int, TokenLogprob | None]] = [(e.token_id, e) for e in prompt_logprobs]
        if self._asked.prompt_from == 0 and not has_begun:
            prompt.insert(0, (ask.prompt_ids[0], None))
        told: dict[str, object] = {
            "input_token_logprobs": self._forms.native(prompt, with_text=self._with_text),
            "output_token_logprobs": self._forms.native(output, with_text=self._with_text),
        }
        if self._asked.num_top:
            for name, entries in (("input", prompt), ("output", output)):
                told[f"{name}_top_logprobs"] = self._forms.native_top(
                    entries, with_text=self._with_text
                )
        return told


class _NativeEncoder:
    """All text so far in every event, as SGLang does, or with is_incremental only what is new.

    The events of several answers are told apart by `index`.
    """

    def __init__(
        self, asks: Sequence[TokenizedRequest], *, is_many: bool, is_incremental: bool, told: _Told
    ) -> None:
        self._asks = asks
        self._told = told
        self._logprobs: list[tuple[TokenLogprob, ...]] = [()] * len(asks)
        self._prompt_logprobs: list[tuple[TokenLogprob, ...]] = [()] * len(asks)
        self._is_many = is_many
        self._is_incremental = is_incremental
        self._texts = [""] * len(asks)
        self._token_ids: list[tuple[int, ...]] = [()] * len(asks)
        self._num_tokens = [0] * len(asks)

    def encode(self, index: int, delta: Delta) -> Iterator[Mapping[str, object]]:
        text, token_ids = delta.text, delta.token_ids
        logprobs, prompt_logprobs = delta.logprobs, delta.prompt_logprobs
        has_begun = self._is_incremental and self._num_tokens[index] > 0
        self._num_tokens[index] += len(token_ids)
        if not self._is_incremental:
            text = self._texts[index] = self._texts[index] + text
            token_ids = self._token_ids[index] = self._token_ids[index] + token_ids
            logprobs = self._logprobs[index] = self._logprobs[index] + logprobs
            prompt_logprobs = self._prompt_logprobs[index] = (
                self._prompt_logprobs[index] + prompt_logprobs
            )
        ask, finish = self._asks[index], delta.finish
        if finish is None:
            meta: dict[str, object] = {
                "id": ask.names[0],
                "finish_reason": None,
                "prompt_tokens": len(ask.prompt_ids),
                "completion_tokens": self._num_tokens[index],
            }
        else:
            meta = _meta_info(ask, finish, delta.seconds)
        meta |= self._told.meta(ask, logprobs, prompt_logprobs, has_begun=has_begun)
        event = {"text": text, "output_ids": token_ids, "meta_info": meta}
        yield {**event, "index": index} if self._is_many else event

    def end(self) -> Iterator[Mapping[str, object]]:
        yield from ()


def _result(ask: TokenizedRequest, answer: CompletionOutput, told: _Told) -> dict[str, object]:
    meta = _meta_info(ask, answer.finish, answer.seconds)
    return {
        "text": answer.text,
        "output_ids": answer.token_ids,
        "meta_info": meta | told.meta(ask, answer.logprobs, answer.prompt_logprobs),
    }


def _meta_info(ask: TokenizedRequest, finish: Finish, seconds: float) -> dict[str, object]:
    stats = finish.speculation
    drafted = stats.num_draft_tokens
    return {
        "id": ask.names[0],
        "finish_reason": _finish_reason(finish),
        "prompt_tokens": finish.num_prompt_tokens,
        "completion_tokens": finish.num_output_tokens,
        "cached_tokens": finish.num_cached_tokens,
        "e2e_latency": seconds,
        "queue_time": finish.queue_seconds,
        "prefill_time": finish.prefill_seconds,
        "decode_time": finish.decode_seconds,
        "spec_accept_length": stats.mean_accept_length,
        "spec_accept_rate": stats.num_accepted / drafted if drafted else 0.0,
        "spec_verify_ct": stats.num_rounds,
        "spec_accept_histogram": stats.accept_counts,
        "spec_accept_token_num": stats.num_accepted,
        "spec_draft_token_num": drafted,
    }


def _finish_reason(finish: Finish) -> dict[str, object]:
    match finish.reason:
        case FinishReason.STOP:
            return {"type": "stop", "matched": finish.matched}
        case FinishReason.LENGTH:
            return {"type": "length", "length": finish.num_output_tokens}
        case FinishReason.ABORT:
            return {"type": "abort", "message": "aborted"}
        case FinishReason.ERROR:
            return {"type": "error", "message": finish.error}
