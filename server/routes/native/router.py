"""Implements /generate, /tokenize and /detokenize."""

from collections.abc import Sequence

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.generation.deltas import CompletionOutput
from server.generation.input_processor import FieldNames, InputProcessor
from server.generation.native_requests import tokenize_native
from server.protocol.native import DetokenizeBody, GenerateBody, TokenizeBody
from server.routes.body_route import BodyRoute, JsonBody
from server.routes.logprobs import LogprobSerializer
from server.routes.native.objects import NativeEncoder, NativeLogprobs, completion_object
from server.routes.openapi_errors import COMPLETION
from server.routes.responder import Responder
from server.text.chat_template import ChatExtras
from server.text.tokenizer import TextCodec


def native_routes(
    *,
    responder: Responder,
    input_processor: InputProcessor,
    text: TextCodec,
    max_len: int,
    served_name: str,
) -> APIRouter:
    """Create the routes. max_len: context length in tokens, reported by /tokenize."""
    router = APIRouter(route_class=BodyRoute)
    serializer = LogprobSerializer(text=text.tokens)

    @router.post("/generate", response_model=None, responses=COMPLETION)
    async def generate(body: JsonBody[GenerateBody], request: Request) -> Response:
        tokenized = await tokenize_native(input_processor, body, request.state.request_id)
        is_list = body.is_list or len(tokenized) > 1
        logprobs = NativeLogprobs(
            serializer, body.logprob_options(), with_text=body.return_text_in_logprobs
        )
        if body.stream:
            encoder = NativeEncoder(
                tokenized,
                logprobs,
                is_list=is_list,
                is_incremental=body.incremental_stream_output,
                with_rounds=body.return_rounds,
            )
            return await responder.stream(
                request, tokenized, encoder, token_by_token=body.token_by_token
            )

        def build(outputs: Sequence[CompletionOutput]) -> object:
            objects = [
                completion_object(item, output, logprobs)
                for item, output in zip(tokenized, outputs, strict=True)
            ]
            return objects if is_list else objects[0]

        return await responder.whole(request, tokenized, build)

    @router.post("/tokenize")
    async def tokenize(body: JsonBody[TokenizeBody]) -> dict[str, object]:
        """Return the tokens of a text, of each text of a list, or of messages."""
        name = next(n for n in ("text", "prompt", "messages") if getattr(body, n) is not None)
        value = getattr(body, name)
        is_list = isinstance(value, list) and name != "messages"
        extras = ChatExtras(
            template_kwargs=body.chat_template_kwargs or {},
            continue_final_message=body.continue_final_message,
            add_generation_prompt=body.add_generation_prompt is not False,
        )
        tokens = [
            await input_processor.encode(
                each,
                field=FieldNames(f"{name}.{i}" if is_list else name),
                add_special_tokens=body.add_special_tokens is not False,
                extras=extras,
            )
            for i, each in enumerate(value if is_list else [value])
        ]
        counts = [len(ids) for ids in tokens]
        strings = [[text.tokens.text(i) for i in ids] for ids in tokens]
        return {
            "tokens": tokens if is_list else tokens[0],
            "count": counts if is_list else counts[0],
            "max_model_len": max_len,
            **(
                {"token_strs": strings if is_list else strings[0]} if body.return_token_strs else {}
            ),
        }

    @router.get("/tokenizer_info")
    async def tokenizer_info() -> dict[str, object]:
        """Return the tokenizer's class, chat template and special tokens, as vLLM does."""
        return text.description()

    @router.get("/get_model_info")
    @router.get("/model_info")
    async def model_info() -> dict[str, object]:
        """Describe the model under SGLang's names."""
        return {
            "model_path": served_name,
            "tokenizer_path": served_name,
            "is_generation": True,
            "preferred_sampling_params": None,
            "has_image_understanding": False,
            "has_audio_understanding": False,
        }

    @router.post("/detokenize")
    async def detokenize(body: JsonBody[DetokenizeBody]) -> dict[str, object]:
        input_processor.check_vocabulary(body.tokens, param="tokens")
        return {"text": text.decode(body.tokens, skip_special_tokens=body.skip_special_tokens)}

    return router
