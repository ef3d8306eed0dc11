"""Checks that a request can be served, before it is queued."""

from dataclasses import dataclass

from engine.api import MAX_LOGPROB_TOKEN_IDS, MAX_TOP_LOGPROBS, Request
from engine.errors import RequestRejected


def served_len(*, model_len: int, pool_tokens: int, num_slots: int) -> int:
    """Return the most tokens of one request, prompt and output, that this engine serves.

    The pool must hold one whole request, with num_slots scratch slots for the draft block after
    the last committed token.
    """
    return min(model_len, pool_tokens - num_slots)


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Holds the limits of one request."""

    max_len: int  # tokens, prompt and output together; both the model's limit and the pool's
    vocab_size: int


def check_request(request: Request, limits: RequestLimits) -> None:
    """Raise RequestRejected, which names the field, for a request that cannot be served."""
    params = request.params
    num_prompt = len(request.prompt_ids)
    if num_prompt == 0:
        raise RequestRejected("prompt is empty; at least one token is needed", param="prompt")
    wrong = next((t for t in request.prompt_ids if not 0 <= t < limits.vocab_size), None)
    if wrong is not None:
        raise RequestRejected(
            f"prompt holds token id {wrong}; accepted are 0 to {limits.vocab_size - 1}",
            param="prompt",
        )
    if num_prompt >= limits.max_len:
        raise RequestRejected(
            f"the maximum context length is {limits.max_len} tokens, prompt and output "
            f"together; the prompt has {num_prompt} tokens",
            param="prompt",
        )
    if params.max_new_tokens < 1:
        raise RequestRejected(
            f"max_new_tokens is {params.max_new_tokens}; accepted is 1 or more",
            param="max_new_tokens",
        )
    if num_prompt + params.max_new_tokens > limits.max_len:
        raise RequestRejected(
            f"the maximum context length is {limits.max_len} tokens, prompt and output "
            f"together; the prompt has {num_prompt} tokens, so max_new_tokens can be at most "
            f"{limits.max_len - num_prompt}, found {params.max_new_tokens}",
            param="max_new_tokens",
        )
    _check_sampling(request)
    _check_ids(request, limits)
    _check_bias(request)


def _check_sampling(request: Request) -> None:
    p = request.params
    rules = (
        ("temperature", p.temperature, p.temperature >= 0, "0 or more"),
        ("top_k", p.top_k, p.top_k == -1 or p.top_k >= 1, "-1 (off) or 1 and more"),
        ("top_p", p.top_p, 0 < p.top_p <= 1, "above 0 and at most 1"),
        ("min_p", p.min_p, 0 <= p.min_p <= 1, "0 to 1"),
        (
            "min_new_tokens",
            p.min_new_tokens,
            0 <= p.min_new_tokens <= p.max_new_tokens,
            f"0 to max_new_tokens, which is {p.max_new_tokens}",
        ),
        (
            "repetition_penalty",
            p.repetition_penalty,
            0.01 <= p.repetition_penalty <= 100,
            "0.01 to 100",
        ),
        ("presence_penalty", p.presence_penalty, -2 <= p.presence_penalty <= 2, "-2 to 2"),
        ("frequency_penalty", p.frequency_penalty, -2 <= p.frequency_penalty <= 2, "-2 to 2"),
        (
            "num_draft_tokens",
            p.num_draft_tokens,
            p.num_draft_tokens is None or p.num_draft_tokens >= 0,
            "None, or 0 and more",
        ),
        (
            "num_logprobs",
            p.num_logprobs,
            p.num_logprobs is None or 0 <= p.num_logprobs <= MAX_TOP_LOGPROBS,
            f"None or 0 to {MAX_TOP_LOGPROBS}",
        ),
        (
            "logprob_token_ids",
            len(p.logprob_token_ids),
            not p.logprob_token_ids
            or (p.num_logprobs is not None and len(p.logprob_token_ids) <= MAX_LOGPROB_TOKEN_IDS),
            f"at most {MAX_LOGPROB_TOKEN_IDS} token ids, together with num_logprobs",
        ),
        (
            "prompt_logprobs_from",
            p.prompt_logprobs_from,
            p.prompt_logprobs_from is None
            or (p.prompt_logprobs_from >= 0 and p.num_logprobs is not None),
            "None, or 0 and more together with num_logprobs",
        ),
    )
    for name, found, is_fine, accepted in rules:
        if not is_fine:
            raise RequestRejected(f"{name} is {found}; accepted is {accepted}", param=name)


def _check_ids(request: Request, limits: RequestLimits) -> None:
    params = request.params
    named = (
        ("stop_token_ids", sorted(params.stop_token_ids)),
        ("logprob_token_ids", params.logprob_token_ids),
        ("logit_bias", [token_id for token_id, _ in params.logit_bias]),
    )
    for name, token_ids in named:
        wrong = next((t for t in token_ids if not 0 <= t < limits.vocab_size), None)
        if wrong is not None:
            raise RequestRejected(
                f"{name} has token id {wrong}; accepted are 0 to {limits.vocab_size - 1}",
                param=name,
            )


def _check_bias(request: Request) -> None:
    bias = request.params.logit_bias
    if len(dict(bias)) < len(bias):
        raise RequestRejected(
            f"logit_bias has {len(bias)} entries for {len(dict(bias))} token ids; accepted is "
            "one for each",
            param="logit_bias",
        )
    value = next((v for _, v in bias if not -100 <= v <= 100), None)
    if value is not None:
        raise RequestRejected(
            f"logit_bias has the value {value}; accepted are -100 to 100", param="logit_bias"
        )
