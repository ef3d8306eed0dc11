"""Every option of a request with a value that matters to a tiny model, and a slow reference.

The reference is transformers' own greedy `generate` with its own processors, cut by the plainest
possible reading of the stops. What transformers lacks is written down here token by token.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from llguidance import LLMatcher, LLTokenizer
from transformers import LogitsProcessor, LogitsProcessorList

from engine import EngineSamplingParams, Request
from engine.loading.target import LoadedTarget, by_transformers_alone
from server.generation.stop_strings import StopStringScanner, StopTable
from server.structured_output.grammar_mask import GrammarMask
from server.structured_output.llguidance_grammar import LIMITS, grammar_list, grammar_part
from server.structured_output.vocabulary import grammar_tokenizer
from server.text.detokenizer import WindowDecoder
from tests.support.engine.tiny_models import VOCAB, tiny_target

NEW_TOKENS = 12
EOS_IDS = frozenset(range(3, VOCAB, 17))  # so many that a random model says one now and then
PROMPTS = ((5, 9, 5, 60, 61, 8), (100, 2, 2, 150, 44, 13, 9, 9, 31))


class OpenAIPenalties(LogitsProcessor):  # type: ignore[misc]
    """presence_penalty and frequency_penalty by the API's own formula, one token at a time."""

    def __init__(self, num_prompt: int, *, presence: float, frequency: float) -> None:
        self._num_prompt = num_prompt
        self._presence = presence
        self._frequency = frequency

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        for row, ids in zip(scores, input_ids.tolist(), strict=True):
            for token_id, count in Counter(ids[self._num_prompt :]).items():
                row[token_id] -= count * self._frequency + self._presence
        return scores


@dataclass
class ByParity:
    """A row mask with a memory: odd and even ids take turns in pairs, e e o o e e ..."""

    num_said: int = 0

    @staticmethod
    def allows(place: int, token_id: int) -> bool:
        return token_id % 2 == place // 2 % 2

    def fill(self, draft_ids: Sequence[int], words: npt.NDArray[np.uint32]) -> None:
        place = self.num_said + len(draft_ids)
        bits = [self.allows(place, t) for t in range(len(words) * 32)]
        words[:] = np.packbits(bits, bitorder="little").view(np.uint32)

    def commit(self, token_id: int) -> bool:
        self.num_said += 1
        return False


# Even and odd letters in pairs, as often as you like; ends of text are no letters to a grammar.
# ASCII and others are mixed, so that no letters have a first byte in common that a single token
# would have to be.
_LETTERS = [chr(33 + t) if t < 90 else chr(0x4E00 + t) for t in range(VOCAB)]
_EVEN, _ODD = (
    "".join(re.escape(c) for t, c in enumerate(_LETTERS) if t % 2 == odd and t not in EOS_IDS)
    for odd in (0, 1)
)
_PAIRS = f"([{_EVEN}]{{2}}[{_ODD}]{{2}})+"


@cache
def _grammar() -> tuple[LLMatcher, LLTokenizer]:
    tokens = [None if t in EOS_IDS else _LETTERS[t].encode() for t in range(VOCAB)]
    tokenizer = grammar_tokenizer(tokens, sorted(EOS_IDS), lambda text: [])
    grammar = grammar_list({"content": grammar_part("regex", _PAIRS)})
    return LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS), tokenizer


def grammar_mask(ignore_eos: bool) -> GrammarMask:
    template, tokenizer = _grammar()
    return GrammarMask(
        template=template,
        new_matcher=template.deep_copy,
        tokenizer=tokenizer,
        eos_ids=sorted(EOS_IDS),
        ignore_eos=ignore_eos,
    )


def _in_pairs(place: int, token_id: int, *, ignore_eos: bool) -> bool:
    """The same rule in plain words: what may be generated at this place of an answer."""
    if token_id in EOS_IDS:
        return place > 0 and place % 4 == 0 and not ignore_eos
    return token_id % 2 == place // 2 % 2


@dataclass(frozen=True)
class Option:
    """One option. `stops` chooses stops from the text that the other options give."""

    name: str
    meaning: str
    params: dict[str, Any] = field(default_factory=dict)
    in_transformers: bool = True
    is_masked: bool = False
    choice: int = 0
    stop_at: int | None = None  # the output token that becomes a stop id ...
    stop_text_at: int | None = None  # ... or the end of a stop string of two tokens


OPTIONS = (
    Option(
        "repetition_penalty",
        "over prompt and output",
        {"repetition_penalty": 1.4},
    ),
    Option("presence_penalty", "over the output, once a token", {"presence_penalty": 1.5}, False),
    Option("frequency_penalty", "over the output, by count", {"frequency_penalty": 0.7}, False),
    Option(
        "logit_bias",
        "a number added to a token's logit",
        {"logit_bias": tuple((t, 6.0 if t % 3 else -6.0) for t in range(0, 40, 2))},
    ),
    Option("temperature", "0 is greedy", {"temperature": 0.0}),
    Option("top_k", "the k likeliest tokens", {"top_k": 5}),
    Option("top_p", "the likeliest tokens with this mass together", {"top_p": 0.7}),
    Option("min_p", "tokens at least this likely, relative to the likeliest", {"min_p": 0.05}),
    Option("min_tokens", "until then nothing ends an answer", {"min_new_tokens": 10}),
    Option("ignore_eos", "the model's end does not end", {"ignore_eos": True}),
    Option("stop", "strings, found across tokens and blocks", {}, False, stop_text_at=7),
    Option("stop_token_ids", "token ids that end an answer", stop_at=6),
    Option("seed", "the same numbers again, whatever is beside", {"seed": 4}, False),
    Option("n", "choices of one seed that draw independently", {}, False, choice=2),
    Option(
        "logprobs",
        "of each token of the answer, of the likeliest and of named ones",
        {"num_logprobs": 3, "logprob_token_ids": (7, 198)},
    ),
    Option(
        "prompt logprobs",
        "of each token of the prompt",
        {"num_logprobs": 2, "prompt_logprobs_from": 0},
    ),
    Option(
        "structured output",
        "JSON schema, regex, EBNF, choice or a call of a tool (`TokenMask`; here a regex)",
        is_masked=True,
    ),
)


def letters(token_ids: Sequence[int]) -> str:
    """A text in which every token is one letter."""
    return "".join(chr(0x4E00 + token_id) for token_id in token_ids)


@dataclass(frozen=True)
class Asked:
    """A request's options together, with stops that hit the text at hand."""

    params: EngineSamplingParams
    stop: str | None
    is_masked: bool
    choice: int

    def request(self, name: str, prompt: Sequence[int], **changes: Any) -> Request:
        """A fresh request: scanner and mask serve one sequence."""
        table = StopTable([self.stop] if self.stop else [])
        decoder = WindowDecoder(decode=letters, skips=lambda token_id: False)
        scanner = StopStringScanner(
            decoder=decoder, table=table, min_tokens=self.params.min_new_tokens
        )
        return Request(
            name,
            tuple(prompt),
            dataclasses.replace(self.params, **changes),
            stop_scanner=scanner if self.stop else None,
            token_mask=grammar_mask(self.params.ignore_eos) if self.is_masked else None,
            choice=self.choice,
        )


def together(options: Sequence[Option], prompt: tuple[int, ...]) -> Asked:
    """The options as one request; two that set the same field take the later one's value."""
    params = {key: value for option in options for key, value in option.params.items()}
    asked = Asked(
        EngineSamplingParams(max_new_tokens=NEW_TOKENS, **params),
        stop=None,
        is_masked=any(option.is_masked for option in options),
        choice=max(option.choice for option in options),
    )
    text = reference(asked, prompt)[0]
    for option in options:
        if option.stop_at is not None:
            stop = text[min(option.stop_at, len(text) - 1)]
            new = dataclasses.replace(asked.params, stop_token_ids=frozenset({stop}))
            asked = dataclasses.replace(asked, params=new)
        if option.stop_text_at is not None:
            end = min(option.stop_text_at, len(text))
            asked = dataclasses.replace(asked, stop=letters(text[max(0, end - 2) : end]))
    return asked


@cache
def target() -> LoadedTarget:
    return dataclasses.replace(tiny_target("llama"), eos_ids=EOS_IDS)


def reference(asked: Asked, prompt: tuple[int, ...]) -> tuple[list[int], list[torch.Tensor]]:
    """(the answer, the target's log-softmax at each of its tokens) without any engine."""
    p = asked.params
    stops = p.stop_token_ids if p.ignore_eos else p.stop_token_ids | EOS_IDS
    ids, logprobs = _generated(
        prompt,
        p.repetition_penalty,
        p.presence_penalty,
        p.frequency_penalty,
        p.logit_bias,
        p.min_new_tokens,
        stops,
        asked.is_masked,
        p.ignore_eos,
    )
    for length in range(1, len(ids) + 1):
        generated = letters(ids[:length])
        has_stop = asked.stop is not None and generated.endswith(asked.stop)
        if has_stop and length >= p.min_new_tokens:
            return list(ids[:length]), list(logprobs[:length])
    return list(ids), list(logprobs)


@cache
def _generated(
    prompt: tuple[int, ...],
    repetition: float,
    presence: float,
    frequency: float,
    bias: tuple[tuple[int, float], ...],
    min_new_tokens: int,
    stops: frozenset[int],
    is_masked: bool,
    ignore_eos: bool,
) -> tuple[tuple[int, ...], tuple[torch.Tensor, ...]]:
    ids = torch.tensor([list(prompt)])
    penalties = OpenAIPenalties(len(prompt), presence=presence, frequency=frequency)

    def allowed(_: int, generated: torch.Tensor) -> list[int]:
        place = len(generated) - len(prompt)
        return [t for t in range(VOCAB) if _in_pairs(place, t, ignore_eos=ignore_eos)]

    with by_transformers_alone(target().model, "sdpa"), torch.inference_mode():
        output = target().model.generate(  # type: ignore[operator]
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=min_new_tokens or None,
            repetition_penalty=repetition,
            sequence_bias=[[[t], v] for t, v in bias] or None,
            logits_processor=LogitsProcessorList([penalties]),
            prefix_allowed_tokens_fn=allowed if is_masked else None,
            eos_token_id=sorted(stops) or [-1],
            pad_token_id=0,
            return_dict_in_generate=True,
            output_logits=True,
        )
    generated = tuple(output.sequences[0, len(prompt) :].tolist())
    return generated, tuple(torch.log_softmax(row[0].float(), -1) for row in output.logits)


@cache
def prompt_logprobs(prompt: tuple[int, ...]) -> torch.Tensor:
    """The target's log-softmax behind every prompt token: [len(prompt), V]."""
    with by_transformers_alone(target().model, "sdpa"), torch.inference_mode():
        logits = target().model(torch.tensor([list(prompt)]), use_cache=False).logits
    return torch.log_softmax(logits[0].float(), -1)
