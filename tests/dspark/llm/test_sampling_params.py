"""SamplingParams takes the fields of POST /generate, and refuses the rest by name."""

from typing import Any

import pytest

from dspark import SamplingParams


def test_fields_are_those_of_generate_and_unset_ones_stay_unset() -> None:
    params = SamplingParams(max_new_tokens=8, temperature=0.5, stop=["a"], n=2)
    assert (params.max_new_tokens, params.temperature, params.stops, params.n) == (
        8,
        0.5,
        ("a",),
        2,
    )
    assert params.top_p is None


def test_max_tokens_is_another_name_of_max_new_tokens() -> None:
    assert SamplingParams(max_tokens=8) == SamplingParams(max_new_tokens=8)
    assert SamplingParams(max_tokens=8, max_new_tokens=8).max_new_tokens == 8
    with pytest.raises(ValueError, match="'max_tokens' is 8 and 'max_new_tokens' is 9"):
        SamplingParams(max_tokens=8, max_new_tokens=9)


def test_values_may_be_what_python_writes_for_json() -> None:
    params = SamplingParams(stop=("a", "b"), logit_bias={5: 1.5}, choice=("x", "y"))
    assert params.stops == ("a", "b")
    assert params.logit_bias == {"5": 1.5}
    assert params.choice == ["x", "y"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -1}, "'temperature' must be at least 0; found -1"),
        ({"temperature": "hot"}, "'temperature' must be a number; found \"hot\""),
        ({"temperature": float("nan")}, "'temperature'"),
        ({"max_tokens": -1}, "'max_new_tokens' must be at least 0; found -1"),
        ({"stop": ""}, "'stop' must not contain an empty string"),
        ({"tempertaure": 1}, "'tempertaure' is an unknown field; .* 'temperature'"),
        ({"logprobs": 3}, "'logprobs' is an unknown field; .* 'return_logprob of LLM.generate"),
        ({"logit_bias": {5: 200}}, "'logit_bias.5' must be a number from -100 to 100; found 200"),
        ({"regex": "a", "json_schema": {}}, "'regex' and 'json_schema' both"),
        ({"stop_token_ids": {1}}, "'stop_token_ids' must be made of text, .*; found set"),
        ({"stop_regex": ["a*"]}, "'stop_regex' .* must match at least one character"),
        ({"structural_tag": "a"}, "'structural_tag' is not"),
    ],
)
def test_what_is_not_accepted_is_a_value_error_with_the_fields_name(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as error:
        SamplingParams(**fields)
    assert "\n" not in str(error.value)
