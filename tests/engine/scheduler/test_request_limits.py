"""What cannot be served is refused with the field, what was found, and what is accepted."""

import pytest

from engine import EngineSamplingParams, Request, RequestRejected
from engine.scheduler.request_limits import RequestLimits, check_request, served_len

LIMITS = RequestLimits(max_len=100, vocab_size=50)


@pytest.mark.parametrize(
    ("prompt_len", "params", "param", "message"),
    [
        (0, {}, "prompt", "prompt is empty"),
        (100, {}, "prompt", "maximum context length is 100 tokens.*the prompt has 100"),
        (3, {"max_new_tokens": 0}, "max_new_tokens", "is 0; accepted is 1 or more"),
        (
            60,
            {"max_new_tokens": 41},
            "max_new_tokens",
            "maximum context length.*at most 40, found 41",
        ),
        (3, {"temperature": -0.5}, "temperature", "is -0.5; accepted is 0 or more"),
        (3, {"temperature": float("nan")}, "temperature", "is nan"),
        (3, {"top_k": 0}, "top_k", "is 0; accepted is -1"),
        (3, {"top_p": 0.0}, "top_p", "is 0.0; accepted is above 0"),
        (3, {"top_p": 1.5}, "top_p", "is 1.5"),
        (3, {"min_p": 2.0}, "min_p", "is 2.0; accepted is 0 to 1"),
        (3, {"min_new_tokens": 9}, "min_new_tokens", "is 9; accepted is 0 to .* which is 8"),
        (3, {"min_new_tokens": -1}, "min_new_tokens", "is -1; accepted is 0 to"),
        (3, {"repetition_penalty": 0.0}, "repetition_penalty", "is 0.0; accepted is 0.01 to 100"),
        (3, {"presence_penalty": 2.5}, "presence_penalty", "is 2.5; accepted is -2 to 2"),
        (3, {"frequency_penalty": float("nan")}, "frequency_penalty", "is nan; accepted is -2"),
        (3, {"stop_token_ids": frozenset({50})}, "stop_token_ids", "id 50; accepted are 0 to 49"),
        (3, {"logit_bias": ((-1, 1.0),)}, "logit_bias", "id -1; accepted are 0 to 49"),
        (3, {"logit_bias": ((1, 101.0),)}, "logit_bias", "value 101.0; accepted are -100 to 100"),
        (3, {"logit_bias": ((1, 1.0), (1, 2.0))}, "logit_bias", "2 entries for 1 token ids"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    prompt_len: int, params: dict[str, object], param: str, message: str
) -> None:
    given = EngineSamplingParams(**{"max_new_tokens": 8, **params})  # type: ignore[arg-type]
    with pytest.raises(RequestRejected, match=message) as refused:
        check_request(Request("a", (1,) * prompt_len, given), LIMITS)
    assert refused.value.param == param


@pytest.mark.parametrize("token_id", [-1, 50, 10**9])
def test_token_ids_outside_the_vocabulary_are_refused(token_id: int) -> None:
    with pytest.raises(RequestRejected, match=f"token id {token_id}; accepted are 0 to 49"):
        check_request(Request("a", (1, token_id), EngineSamplingParams(max_new_tokens=1)), LIMITS)


def test_the_largest_request_that_fits_is_taken() -> None:
    check_request(Request("a", (1,) * 60, EngineSamplingParams(max_new_tokens=40)), LIMITS)


def test_a_pool_smaller_than_the_context_is_the_limit_less_the_drafts_scratch() -> None:
    assert served_len(model_len=2048, pool_tokens=800, num_slots=5) == 795
    assert served_len(model_len=2048, pool_tokens=8000, num_slots=5) == 2048
