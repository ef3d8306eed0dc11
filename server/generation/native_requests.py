"""Tokenizes the prompts of a /generate body, for the HTTP route and the Python API."""

from collections.abc import Sequence
from dataclasses import replace

from server.generation.input_processor import (
    FieldNames,
    InputProcessor,
    TokenizedRequest,
    check_num_choices,
)
from server.protocol.common import Message
from server.protocol.native import GenerateBody, SamplingBody
from server.structured_output.output_grammar import OutputGrammar
from server.text.chat_template import ChatExtras


async def tokenize_native(
    input_processor: InputProcessor, body: GenerateBody, request_id: str
) -> list[TokenizedRequest]:
    """Tokenize every prompt of a body, once for each of its choices. Raises ApiError."""
    param, prompts = _prompts(body)
    extras = ChatExtras(template_kwargs=body.chat_template_kwargs or {})
    requests: list[TokenizedRequest] = []
    for i, prompt in enumerate(prompts):
        params, prefix = _sampling(body, i)
        tokenized = await input_processor.process(
            prompt,
            params,
            names=_names(body, i, request_id),
            field=FieldNames(f"{param}.{i}" if body.is_list else param, prefix),
            extras=extras,
            logprobs=body.logprob_options(i, scores_only=params.max_new_tokens == 0),
        )
        grammar = OutputGrammar.of_content(params.grammar_spec(prefix))
        tokenized = await input_processor.with_grammar(tokenized, grammar)
        tokenized = replace(
            tokenized, priority=body.priority or 0, cache_salt=body.cache_salt or ""
        )
        requests += tokenized.choices(params.num_choices)
    check_num_choices(len(requests), param="sampling_params.n")
    return requests


def _prompts(body: GenerateBody) -> tuple[str, Sequence[str | Sequence[int] | Sequence[Message]]]:
    """Return the name of the prompt field, and the prompts."""
    param = next(name for name in ("text", "input_ids", "messages") if getattr(body, name))
    value = getattr(body, param)
    return param, value if body.is_list else [value]


def _sampling(body: GenerateBody, index: int) -> tuple[SamplingBody, str]:
    """Return the sampling fields of a prompt, and the path of their object."""
    if isinstance(body.sampling_params, list):
        return body.sampling_params[index], f"sampling_params.{index}."
    return body.sampling_params or SamplingBody(), "sampling_params."


def _names(body: GenerateBody, index: int, request_id: str) -> tuple[str, ...]:
    """Return the names of a prompt's request: its own first, then those of the whole body."""
    if isinstance(body.rid, list):
        return body.rid[index], request_id
    rid = body.rid or request_id
    own = f"{rid}-{index}" if body.is_list else rid
    return own, rid, request_id
