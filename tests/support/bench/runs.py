"""Request runs with given times, and tiny workloads."""

from collections.abc import Sequence
from typing import Any

from dspark.bench.workloads.prompts import EncodedPrompt
from dspark.bench.workloads.trial import EngineCounts, Trial, Workload
from engine import (
    EngineSamplingParams,
    EngineSnapshot,
    Finish,
    FinishReason,
    Request,
    SpeculationStats,
)
from engine.core.offline import RequestRun
from tests.support.engine.running import prompts
from tests.support.engine.tiny_models import VOCAB

CATEGORIES = ("chat", "code")


def run(
    times: Sequence[float],
    sizes: Sequence[int],
    *,
    ids: Sequence[int] | None = None,
    prompt: Sequence[int] = (1, 2, 3),
    started_at: float = 0.0,
    stats: SpeculationStats = SpeculationStats(),  # noqa: B008 - frozen
) -> RequestRun:
    """A request with events at `times` (s) of `sizes` tokens each."""
    token_ids = list(range(sum(sizes))) if ids is None else list(ids)
    finish = Finish(FinishReason.LENGTH, None, len(prompt), len(token_ids), 0, stats, 0.0, 0.0, 0.0)
    return RequestRun(
        Request("r", tuple(prompt)), started_at, list(times), list(sizes), token_ids, finish
    )


def trial(
    runs: Sequence[RequestRun],
    *,
    seconds: float = 1.0,
    categories: Sequence[str] | None = None,
    before: EngineSnapshot | None = None,
    after: EngineSnapshot | None = None,
) -> Trial:
    return Trial(
        runs=tuple(runs),
        categories=tuple(categories or ["chat"] * len(runs)),
        seconds=seconds,
        counts=EngineCounts.between(
            before or EngineSnapshot(), after or EngineSnapshot(num_steps=1)
        ),
    )


def workload(count: int = 4, *, max_tokens: int = 12, concurrency: int = 1, **how: Any) -> Workload:
    """Random prompts for the tiny models, of two kinds in turn."""
    encoded = [
        EncodedPrompt(CATEGORIES[i % 2], tuple(ids))
        for i, ids in enumerate(prompts(count, vocab=VOCAB, **how))
    ]
    return Workload(tuple(encoded), EngineSamplingParams(max_new_tokens=max_tokens), concurrency)


def silent(label: str) -> None:
    """A report without output."""
