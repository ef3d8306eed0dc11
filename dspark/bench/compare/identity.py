"""Proof by comparison: the engine's greedy text against transformers' own generate."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.api import EngineSamplingParams, Request
from engine.core.engine_core import EngineCore
from engine.core.offline import drive
from engine.loading.target import LoadedTarget, by_transformers_alone

TIE = 1e-4  # top-2 gap of the reference's logits below which either choice is right


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two greedy texts part."""

    position: int  # output token, 0-based
    expected_id: int | None  # None: the reference had ended
    found_id: int | None
    top2_gap: float  # of the reference's own logits there

    @property
    def is_tie(self) -> bool:
        return self.top2_gap < TIE


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prompt's outcome."""

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
    """What `generate(do_sample=False)` says, with nothing but the stop ids taken from its config.

    A generation config may carry a repetition penalty that acts even without sampling; the
    comparison is with plain greedy decoding, so it is switched off. A streamer is told of the
    prompt and of every token, as transformers does it.
    """
    ids = torch.tensor([list(prompt)], device=next(target.model.parameters()).device)
    with by_transformers_alone(target.model, "sdpa"), torch.inference_mode():
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
    """Run every prompt through the engine and compare with its reference text."""
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
                difference=_first_difference(target, prompt, reference, run.token_ids),
            )
        )
    return comparisons


def _first_difference(
    target: LoadedTarget,
    prompt: Sequence[int],
    expected: Sequence[int],
    found: Sequence[int],
) -> Difference | None:
    if list(expected) == list(found):
        return None
    shorter = min(len(expected), len(found))
    position = next((i for i in range(shorter) if expected[i] != found[i]), shorter)
    return Difference(
        position=position,
        expected_id=expected[position] if position < len(expected) else None,
        found_id=found[position] if position < len(found) else None,
        top2_gap=top2_gap(target, [*prompt, *expected[:position]]),
    )


def top2_gap(target: LoadedTarget, ids: Sequence[int]) -> float:
    """Gap between the two best next-token logits, by the model's own dense attention."""
    device = next(target.model.parameters()).device
    with by_transformers_alone(target.model, "sdpa"), torch.inference_mode():
        output = target.model(
            input_ids=torch.tensor([list(ids)], device=device), use_cache=False, logits_to_keep=1
        )
    best: Tensor = output.logits[0, -1].float().topk(2).values
    return float(best[0] - best[1])
