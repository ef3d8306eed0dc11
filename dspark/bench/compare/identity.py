"""Compares greedy text of the engine with that of transformers' generate."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest

import torch
from torch import Tensor

from engine.api import EngineSamplingParams, Request
from engine.core.engine_core import EngineCore
from engine.core.offline import drive
from engine.loading.target import LoadedTarget, by_transformers_alone, fastest_attention

TIE = 1e-4  # top-2 gap of the reference's logits below which either choice is right

Gap = Callable[[Sequence[int]], float]  # top-2 gap of the target's logits after these ids


@dataclass(frozen=True, slots=True)
class Difference:
    """The first position at which two greedy texts differ."""

    position: int  # output token, from 0
    expected_id: int | None  # None: the reference has ended
    found_id: int | None
    top2_gap: float  # of the reference's logits at this position

    @property
    def is_tie(self) -> bool:
        return self.top2_gap < TIE

    @property
    def kind(self) -> str:
        return "tie" if self.is_tie else "DIFFERENT"

    def describe(self) -> str:
        return (
            f"output token {self.position}: expected {_token(self.expected_id)}, found "
            f"{_token(self.found_id)}, top-2 gap {self.top2_gap:.1e}"
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcome of one prompt."""

    expected_ids: tuple[int, ...]
    found_ids: tuple[int, ...]
    accept_length: float  # mean, bonus included; 0 without a draft
    difference: Difference | None

    @property
    def holds(self) -> bool:
        return self.difference is None or self.difference.is_tie


def generate_reference(
    target: LoadedTarget,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    streamer: object | None = None,
) -> tuple[int, ...]:
    """Run `generate(do_sample=False)`; only the stop ids come from the generation config.

    A repetition penalty of the config would also act without sampling and is switched off. The
    streamer receives the prompt and every token.
    """
    ids = torch.tensor([list(prompt)], device=next(target.model.parameters()).device)
    attention = fastest_attention(target.model)
    with by_transformers_alone(target.model, attention), torch.inference_mode():
        output: Tensor = target.model.generate(  # type: ignore[operator]
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=max_new_tokens,
            repetition_penalty=1.0,
            temperature=None,
            top_p=None,
            top_k=None,
            eos_token_id=sorted(target.eos_ids) or [-1],
            pad_token_id=min(target.eos_ids, default=0),
            streamer=streamer,
        )
    return tuple(output[0, len(prompt) :].tolist())


def compare_greedy(
    engine: EngineCore,
    target: LoadedTarget,
    prompts: Sequence[Sequence[int]],
    *,
    references: Sequence[Sequence[int]],
    max_new_tokens: int,
    concurrency: int,
) -> list[Comparison]:
    """Run every prompt through the engine and compare the text with its reference."""
    requests = [
        Request(f"compare-{i}", tuple(prompt), EngineSamplingParams(max_new_tokens=max_new_tokens))
        for i, prompt in enumerate(prompts)
    ]
    runs = drive(engine, requests, concurrency=concurrency)
    comparisons = []
    for run, prompt, reference in zip(runs, prompts, references, strict=True):
        assert run.finish is not None
        comparisons.append(
            Comparison(
                expected_ids=tuple(reference),
                found_ids=tuple(run.token_ids),
                accept_length=run.finish.speculation.mean_accept_length,
                difference=first_difference(
                    prompt, reference, run.token_ids, gap=partial(top2_gap, target)
                ),
            )
        )
    return comparisons


def first_difference(
    prompt: Sequence[int], expected: Sequence[int], found: Sequence[int], *, gap: Gap
) -> Difference | None:
    """Compare two texts after a prompt; the end of one text differs from any token."""
    for position, (right, other) in enumerate(zip_longest(expected, found)):
        if right != other:
            return Difference(position, right, other, gap([*prompt, *expected[:position]]))
    return None


def top2_gap(target: LoadedTarget, ids: Sequence[int]) -> float:
    """Return the gap between the two largest next-token logits of the dense model."""
    device = next(target.model.parameters()).device
    attention = fastest_attention(target.model)
    with by_transformers_alone(target.model, attention), torch.inference_mode():
        output = target.model(
            input_ids=torch.tensor([list(ids)], device=device), use_cache=False, logits_to_keep=1
        )
    best: Tensor = output.logits[0, -1].float().topk(2).values
    return float(best[0] - best[1])


def _token(token_id: int | None) -> str:
    return "the end" if token_id is None else f"id {token_id}"
