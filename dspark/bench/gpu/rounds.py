"""Measures decode rounds of an engine at a given batch size and accept length."""

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from dspark.bench.gpu.timing import Stopwatch
from dspark.bench.report.statistics import Spread
from dspark.bench.workloads.timing import marked_calls, replaced
from engine.api import EngineSamplingParams, Request
from engine.build import Built
from engine.runner.batch import ScheduleBatch
from engine.runner.target_model import TargetOutput

PREFILL_CHUNK = 2048  # tokens
_SMALLEST_CHUNK = 8  # prompt tokens of a step, of any measurement
_CERTAIN = 1e4  # a logit above all others
_BONUS = 1  # a token id that ends no output
_BESIDE = "beside"  # the prompt that is computed during rounds
GREEDY = EngineSamplingParams(max_new_tokens=1)
# Qwen3's generation_config: what a request without fields gets.
DEFAULTS = EngineSamplingParams(max_new_tokens=1, temperature=0.6, top_k=20, top_p=0.95, seed=1)


@dataclass(frozen=True, slots=True)
class Rounds:
    """Steps in which every sequence was past its prompt."""

    step_ms: Spread  # host clock, from plan to events
    parts_ms: dict[str, Spread]  # between marks on the device
    tokens_per_s: float
    accept_length: float


@contextmanager
def forced_acceptance(built: Built, num_accepted: int, *, draws: bool) -> Iterator[None]:
    """Make the target accept exactly num_accepted draft tokens of each window in the block.

    The passes are real. Overwritten is the verdict of a replayed pass, or else a few logits.
    draws: whether sequences sample, so that a replay's verdict decides nothing.
    """
    vocab_size = built.target.vocab_size
    forward = built.runner.forward

    def biased(batch: ScheduleBatch) -> TargetOutput:
        output = forward(batch)
        drafts, rows = batch.draft_ids, batch.verify_rows
        agreed = min(num_accepted, drafts.shape[1])
        verdict = None if draws else output.verdict
        if verdict is not None:
            accepted = verdict.num_accepted.copy_(batch.num_drafts.clamp(max=agreed))
            verdict.output_ids[:, : drafts.shape[1]] = drafts
            verdict.output_ids.scatter_(1, accepted[:, None], _BONUS)
            return output
        output.logits[rows[:, :agreed], drafts[:, :agreed]] = _CERTAIN
        if agreed < drafts.shape[1]:
            output.logits[rows[:, agreed], (drafts[:, agreed] + 1) % vocab_size] = _CERTAIN
        return output

    with replaced(built.runner, "forward", biased):
        yield


def measure_rounds(
    built: Built,
    device: torch.device,
    *,
    batch: int,
    context: int,
    num_accepted: int,
    steps: int,
    params: EngineSamplingParams = GREEDY,
    long_context: int | None = None,
    prompt_beside: int = 0,
) -> Rounds:
    """Run at most `steps` rounds of `batch` sequences with `context` prompt tokens each.

    long_context: of the first sequence. prompt_beside: tokens of a prompt that is computed in the
    same steps; the steps end with it.
    """
    engine, watch = built.engine, Stopwatch(device)
    warm_up = 4
    generator = torch.Generator().manual_seed(batch)
    # Early sequences decode while the prompts of others are prefilled.
    contexts = [long_context or context, *[context] * (batch - 1)]
    prefill = 4 + sum(contexts) // _SMALLEST_CHUNK
    most = (warm_up + steps + prefill) * (built.proposer.block_size + 1)
    params = replace(params, max_new_tokens=most)
    with (
        torch.inference_mode(),
        marked_calls(built.runner, "forward", watch.mark) as passes,
        forced_acceptance(built, num_accepted, draws=not params.is_greedy),
        marked_calls(built.proposer, "propose", watch.mark) as drafts,
        marked_calls(built.proposer, "write_context", watch.mark) as writes,
    ):

        def add(name: str, length: int) -> None:
            prompt = torch.randint(1, built.target.vocab_size, (length,), generator=generator)
            engine.add(Request(name, tuple(prompt.tolist()), params))

        for i, length in enumerate(contexts):
            add(str(i), length)
        started: set[str] = set()
        while len(started) < batch:
            started |= {event.request_id for event in engine.step()}
        for _ in range(warm_up):
            engine.step()
        watch.finish()
        for marks in (drafts, passes, writes):
            marks.clear()
        if prompt_beside:
            add(_BESIDE, prompt_beside)
        seconds, tokens = [], 0
        for _ in range(steps):
            began = time.perf_counter()
            events = engine.step()
            seconds.append(time.perf_counter() - began)
            tokens += sum(len(event.token_ids) for event in events)
            if any(event.request_id == _BESIDE for event in events):
                break
        watch.finish()
        for name in engine.request_ids():
            engine.abort(name)
    parts = {"draft": drafts, "target": passes, "context": writes}
    return Rounds(
        step_ms=Spread.of([1000 * s for s in seconds]),
        parts_ms={
            name: Spread.of(list(itertools.starmap(watch.ms, marks)))
            for name, marks in parts.items()
            if marks
        },
        tokens_per_s=tokens / sum(seconds),
        accept_length=tokens / (len(seconds) * batch),
    )
