"""The sampling fields of a request, by the names that POST /generate has for them."""

from collections.abc import Mapping
from typing import Any, ClassVar

from dspark.llm.validation import json_value, python_errors
from server.protocol.native import SamplingBody

_ALIASES = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"}
_OF_THE_CALL = (
    *("logprobs", "prompt_logprobs", "return_logprob", "logprob_start_len", "top_logprobs_num"),
    *("chat_template_kwargs", "tools", "tool_choice", "parallel_tool_calls"),
)


class SamplingParams(SamplingBody):
    """Sampling options of a request; what is left out is the model's own default.

    Fields are those of `sampling_params` in POST /generate; `max_tokens` is another name for
    `max_new_tokens`. Raises ValueError naming the field, what was found and what is accepted.
    """

    ELSEWHERE: ClassVar[Mapping[str, str]] = {
        "logprobs": "return_logprob of LLM.generate and LLM.chat",
        "prompt_logprobs": "logprob_start_len of LLM.generate and LLM.chat",
        **{name: f"{name} of LLM.generate and LLM.chat" for name in _OF_THE_CALL[2:]},
    }

    def __init__(self, **fields: Any) -> None:
        for alias, name in _ALIASES.items():
            if alias not in fields:
                continue
            value = fields.pop(alias)
            if fields.setdefault(name, value) != value:
                raise ValueError(
                    f"'{alias}' is {value} and '{name}' is {fields[name]}; they are two names of "
                    "one field: send one"
                )
        given = {name: json_value(name, value) for name, value in fields.items()}
        with python_errors():
            super().__init__(**given)
