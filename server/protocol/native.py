"""Defines the bodies of /generate and the other native routes, with SGLang's names."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from engine import MAX_LOGPROB_TOKEN_IDS, MAX_TOP_LOGPROBS
from server.errors.validation_errors import field_error
from server.protocol.base import Body, Text, item_count
from server.protocol.common import (
    MAX_PROMPTS,
    UNSERVED_EXTRAS,
    CacheSalt,
    Messages,
    Priority,
    Prompt,
    PromptIds,
    RequestId,
    Seed,
    TemplateKwargs,
    TokenId,
    TokenIds,
    check_continuation,
)
from server.protocol.engine_options import LogprobOptions
from server.protocol.sampling_options import OptionFields, check_return_rounds


class SamplingBody(OptionFields):
    """`sampling_params` of /generate."""

    UNSERVED: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "structural_tag": (),
        "custom_params": ({},),
    }

    IGNORED = frozenset({"spaces_between_special_tokens"})

    max_new_tokens: int | None = Field(None, ge=0)  # 0: the prompt is scored
    min_new_tokens: int | None = Field(None, ge=0)
    sampling_seed: Seed | None = None

    def token_limit(self) -> tuple[str, int | None]:
        return "max_new_tokens", self.max_new_tokens

    @property
    def default_limit(self) -> int | None:
        return 128

    def min_length(self) -> tuple[str, int | None]:
        return "min_new_tokens", self.min_new_tokens

    def effective_seed(self) -> int | None:
        seed = self.seed if self.sampling_seed is None else self.sampling_seed
        return None if seed == -1 else seed

    @model_validator(mode="after")
    def _one_seed(self) -> Self:
        if self.seed is not None and self.sampling_seed not in (None, self.seed):
            raise field_error(
                "kind", "seed", "and sampling_seed are two names of one field; send one"
            )
        return self


def _one_or_many(value: object) -> str | None:
    """Return the union branch of a field with one value, or a list of one per prompt."""
    if value is None:
        return "<none>"
    return "<many>" if isinstance(value, list) else "<one>"


def _one_list_or_many(value: object) -> str | None:
    """Return the union branch of a field whose values are lists."""
    if value is None:
        return "<none>"
    if not isinstance(value, list):
        return None
    return "<many>" if value and isinstance(value[0], list) else "<one>"


def _choice(kind: Any, accepted: str) -> Discriminator:
    return Discriminator(
        kind, custom_error_type="kind", custom_error_message=f"Input should be {accepted}"
    )


_Nothing = Annotated[None, Tag("<none>")]
_PerPrompt = item_count(MAX_PROMPTS, least=1)
LogprobIds = Annotated[list[TokenId], item_count(MAX_LOGPROB_TOKEN_IDS)]


class GenerateBody(Body):
    """Exactly one of text, input_ids and messages; a list of prompts returns a list.

    Lists of sampling_params, rid and token_ids_logprob need a list of prompts of the same length.
    return_rounds needs stream, and chat_template_kwargs needs messages.
    """

    IGNORED = frozenset({"log_metrics", "model", "no_logs", "stream_options"})
    UNSERVED: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **UNSERVED_EXTRAS,
        "background": (False,),
        "require_reasoning": (False,),
        "return_bytes": (False,),
        "return_entropy": (False,),
        "return_indexer_topk": (False,),
        "image_data": (),
        "audio_data": (),
        "video_data": (),
        "input_embeds": (),
    }

    ELSEWHERE: ClassVar[Mapping[str, str]] = (
        {
            name: f"sampling_params.{name}"
            for name in (*SamplingBody.model_fields, *SamplingBody.UNSERVED)
        }
        | dict.fromkeys(
            ("max_tokens", "max_completion_tokens", "num_predict", "n_predict"),
            "sampling_params.max_new_tokens",
        )
        | {"prompt": "text", "inputs": "text", "prompt_token_ids": "input_ids"}
    )

    text: Annotated[
        _Nothing
        | Annotated[Prompt, Tag("<one>")]
        | Annotated[list[Prompt], Tag("<many>"), _PerPrompt],
        _choice(_one_or_many, "a string or a list of strings"),
    ] = None
    input_ids: Annotated[
        _Nothing
        | Annotated[PromptIds, Tag("<one>")]
        | Annotated[list[PromptIds], Tag("<many>"), _PerPrompt],
        _choice(_one_list_or_many, "a list of token ids or a list of such lists"),
    ] = None
    messages: Annotated[
        _Nothing
        | Annotated[Messages, Tag("<one>")]
        | Annotated[list[Messages], Tag("<many>"), _PerPrompt],
        _choice(_one_list_or_many, "a list of messages or a list of such lists"),
    ] = None
    sampling_params: Annotated[
        _Nothing
        | Annotated[SamplingBody, Tag("<one>")]
        | Annotated[list[SamplingBody], Tag("<many>"), _PerPrompt],
        _choice(_one_or_many, "an object or a list of objects"),
    ] = None
    rid: Annotated[
        _Nothing
        | Annotated[RequestId, Tag("<one>")]
        | Annotated[list[RequestId], Tag("<many>"), _PerPrompt],
        _choice(_one_or_many, "a string or a list of strings"),
    ] = None
    priority: Priority | None = None
    cache_salt: CacheSalt | None = None  # shares computed prefixes with the same salt alone
    stream: bool = False
    return_logprob: bool = False  # this and the next three apply to all prompts
    # First prompt position with logprobs; -1: none; None: all of a prompt that is only scored.
    logprob_start_len: int | None = Field(None, ge=-1)
    top_logprobs_num: int = Field(0, ge=0, le=MAX_TOP_LOGPROBS)
    token_ids_logprob: Annotated[
        _Nothing
        | Annotated[LogprobIds, Tag("<one>")]
        | Annotated[list[LogprobIds], Tag("<many>"), _PerPrompt],
        _choice(_one_list_or_many, "a list of token ids or a list of such lists"),
    ] = None  # tokens whose log probabilities each position has
    return_text_in_logprobs: bool = False
    token_by_token: bool = False  # one stream event per token
    return_rounds: bool = False  # the rounds of each stream event's tokens
    chat_template_kwargs: TemplateKwargs | None = None
    incremental_stream_output: bool = False  # stream events have only new text and tokens

    @property
    def is_list(self) -> bool:
        """Whether the response is a list."""
        if self.text is not None:
            return isinstance(self.text, list)
        prompt = self.input_ids if self.input_ids is not None else self.messages
        return prompt is not None and isinstance(prompt[0], list)

    def logprob_options(
        self, index: int = 0, *, scores_only: bool = False
    ) -> LogprobOptions | None:
        """Return the log probabilities that are requested of prompt number `index`.

        scores_only: it has no output.
        """
        if not self.return_logprob:
            return None
        start, ids = self.logprob_start_len, self.token_ids_logprob or []
        if start is None:
            start = 0 if scores_only else -1
        own = ids[index] if ids and isinstance(ids[0], list) else ids
        token_ids = tuple(token_id for token_id in own if isinstance(token_id, int))
        return LogprobOptions(self.top_logprobs_num, start if start >= 0 else None, token_ids)

    @model_validator(mode="after")
    def _rounds_need_stream(self) -> Self:
        check_return_rounds(self.return_rounds, self.stream)
        return self

    @model_validator(mode="after")
    def _one_prompt_field(self) -> Self:
        given = [name for name in ("text", "input_ids", "messages") if getattr(self, name)]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            raise ValueError(f"send exactly one of text, input_ids and messages; found {found}")
        _check_template_kwargs(self)
        return self

    @model_validator(mode="after")
    def _lists_match_the_prompts(self) -> Self:
        prompts = self.text or self.input_ids or self.messages or []
        ids = self.token_ids_logprob or []
        by_prompt = {
            "sampling_params": self.sampling_params,
            "rid": self.rid,
            "token_ids_logprob": ids if ids and isinstance(ids[0], list) else None,
        }
        for name, values in by_prompt.items():
            if not isinstance(values, list):
                continue
            if not self.is_list:
                raise field_error(
                    "kind", name, "is a list, but there is one prompt; send one value"
                )
            if len(values) != len(prompts):
                message = f"must be one value or {len(prompts)}; found {len(values)}"
                raise field_error("kind", name, message)
        return self


class AbortBody(Body):
    """Exactly one of rid and `abort_all: true`."""

    rid: RequestId | None = None
    abort_all: bool = False

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if (self.rid is None) != self.abort_all:
            raise ValueError("send exactly one of 'rid' and 'abort_all': true")
        return self


class ContextKVBody(Body):
    mode: Literal["auto", "on", "off"]


Texts = Annotated[
    _Nothing | Annotated[Text, Tag("<one>")] | Annotated[list[Text], Tag("<many>"), _PerPrompt],
    _choice(_one_or_many, "a string or a list of strings"),
]


class TokenizeBody(Body):
    """Exactly one of text (or its alias prompt) and messages; a list of texts returns lists.

    chat_template_kwargs and continue_final_message need messages; the latter needs a last message
    of the assistant, and excludes add_generation_prompt.
    """

    IGNORED = frozenset({"model"})

    text: Texts = None
    prompt: Texts = None
    messages: Messages | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    add_special_tokens: bool | None = None  # of a text, by default true; not of messages
    add_generation_prompt: bool | None = None  # of messages; true unless one is continued
    continue_final_message: bool = False  # of messages
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [n for n in ("text", "prompt", "messages") if getattr(self, n) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            raise ValueError(f"send exactly one of text, prompt and messages; found {found}")
        _check_template_kwargs(self)
        check_continuation(self.messages, self)
        return self


class DetokenizeBody(Body):
    IGNORED = frozenset({"model"})

    tokens: TokenIds
    skip_special_tokens: bool = True


def _check_template_kwargs(body: GenerateBody | TokenizeBody) -> None:
    if body.chat_template_kwargs and body.messages is None:
        raise field_error("kind", "chat_template_kwargs", "is only accepted with 'messages'")
