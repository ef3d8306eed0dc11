"""The demo pair makes the rounds that the original evaluator made, one by one."""

import json
from pathlib import Path
from typing import Any

import pytest

from dspark.bench.compare.identity import top2_gap
from engine import EngineSamplingParams, Request
from engine.core.offline import drive
from engine.loading.target import LoadedTarget
from tests.support.engine.demo_pair import DemoPair
from tests.support.paths import GOLDEN

TRACES: list[dict[str, Any]] = json.loads((GOLDEN / "traces" / "smollm2-dev.json").read_text())

pytestmark = pytest.mark.weights


@pytest.fixture(scope="module")
def pair(demo_target: Path, golden_draft: Path) -> DemoPair:
    return DemoPair.load(demo_target, golden_draft)


def _check(pair: DemoPair, trace: dict[str, Any], max_new_tokens: int) -> None:
    """Ids and rounds agree up to the cut; only the round that is cut may be shorter."""
    prompt = trace["input_ids"]
    expected_ids = trace["output_ids"][:max_new_tokens]
    request = Request(
        "trace", tuple(prompt), EngineSamplingParams(max_new_tokens=len(expected_ids))
    )
    # As the original computed: in bfloat16 the head is rounded, and a guess may be another one.
    engine = pair.engine(draft_dtype="float32").engine
    (run,) = drive(engine, [request], concurrency=1)
    _check_ids(pair.target, prompt, expected_ids, run.token_ids)
    rounds = run.event_sizes[1:]  # the first token comes from the prompt
    assert sum(rounds) == len(run.token_ids) - 1
    assert rounds[:-1] == trace["acceptance_lengths"][: len(rounds) - 1]
    assert rounds[-1] <= trace["acceptance_lengths"][len(rounds) - 1]


def _check_ids(
    target: LoadedTarget, prompt: list[int], expected: list[int], found: list[int]
) -> None:
    for i, (a, b) in enumerate(zip(expected, found, strict=True)):
        assert a == b or top2_gap(target, [*prompt, *expected[:i]]) < 1e-4, f"token {i}"


@pytest.mark.parametrize("index", [0, 7])
def test_two_traces_are_reproduced_round_by_round_for_32_tokens(pair: DemoPair, index: int) -> None:
    _check(pair, TRACES[index], 32)


@pytest.mark.slow
@pytest.mark.parametrize("index", range(len(TRACES)))
def test_every_trace_is_reproduced_round_by_round(pair: DemoPair, index: int) -> None:
    _check(pair, TRACES[index], 1000)
