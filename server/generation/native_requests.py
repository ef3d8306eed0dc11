"""Tokenizes the prompts of a /generate body; the HTTP route and the Python API share it."""

from collections.abc import Sequence

from server.generation.input_processor import (
    Field,
    InputProcessor,
    TokenizedRequest,
    check_num_answers,
)
from server.protocol.common import Message
from server.protocol.native import GenerateBody, SamplingBody
from server.structured_output.output_grammar import OutputGrammar
from server.text.tokenizer import ChatExtras


async def tokenize_native(
    input_processor: InputProcessor, body: GenerateBody, request_id: str
) -> list[TokenizedRequest]:
    """Tokenize every prompt of a body, once for each of its choices. Raises ApiError."""
    param, prompts = _prompts(body)
    extras = ChatExtras(template_kwargs=body.chat_template_kwargs or {})
    asks: list[TokenizedRequest] = []
    for i, prompt in enumerate(prompts):
        params, prefix = _sampling(body, i)
        ask = await input_processor.ask(
            prompt,
            params,
            names=_names(body, i, request_id),
            field=Field(f"{param}.{i}" if body.is_many else param, prefix),
            extras=extras,
            logprobs=body.logprob_options(),
        )
        ask = await input_processor.keeping_to(
            ask, OutputGrammar.of_content(params.grammar_spec(prefix))
        )
        asks += ask.choices(params.num_choices)
    check_num_answers(len(asks), param="sampling_params.n")
    return asks


def _prompts(body: GenerateBody) -> tuple[str, Sequence[str | Sequence[int] | Sequence[Message]]]:
    """The field that holds the prompts, and one prompt for each answer."""
    param = next(name for name in ("text", "input_ids", "messages") if getattr(body, name))
    value = getattr(body, param)
    return param, value if body.is_many else [value]


def _sampling(body: GenerateBody, index: int) -> tuple[SamplingBody, str]:
    """Prompt number `index`'s sampling fields, and how a client calls the object they are in."""
    if isinstance(body.sampling_params, list):
        return body.sampling_params[index], f"sampling_params.{index}."
    return body.sampling_params or SamplingBody(), "sampling_params."


def _names(body: GenerateBody, index: int, request_id: str) -> tuple[str, ...]:
    """What prompt number `index` is called: its own name first, then the whole request's."""
    if isinstance(body.rid, list):
        return body.rid[index], request_id
    whole = body.rid or request_id
    own = f"{whole}-{index}" if body.is_many else whole
    return own, whole, request_id
