"""Costs are measured on the engine in a short time, and do not change it."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from draft import DSparkProposer
from engine.build import Built
from engine.cuda_graphs import GraphedTarget
from engine.draft_length.cost_profiling import CostRig, measure_costs
from engine.model_setup import draft_backend as draft_building
from engine.runner.target_model import TargetModel
from tests.support.engine.recorded import graphed_engine
from tests.support.engine.running import generate_alone, greedy_requests, prompts, run_all
from tests.support.engine.tiny_models import CPU, VOCAB, tiny_engine, tiny_target, write_tiny_draft

BLOCK, RUNNING = 4, 6
WIDTH = BLOCK + 1


@pytest.fixture(scope="module")
def draft_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_draft(tmp_path_factory.mktemp("draft"), block_size=BLOCK)


@pytest.fixture(scope="module")
def built(draft_folder: Path) -> Built:
    return tiny_engine(draft_folder=draft_folder, max_running_requests=RUNNING)


def rig_of(built: Built, **changes: Any) -> CostRig:
    values = {
        "num_pages": built.memory.num_pages,
        "page_size": built.memory.page_size,
        "max_len": built.engine.info.served_max_len,
        "max_running": RUNNING,
        "width": WIDTH,
        "capture_sizes": (),
        **changes,
    }
    return CostRig(target=built.runner, proposer=built.proposer, device=CPU, **values)


@contextmanager
def watched() -> Iterator[dict[str, list[tuple[int, int]]]]:
    """Record rows and longest context of every pass, sequences and context of every draft."""
    seen: dict[str, list[tuple[int, int]]] = {"passes": [], "drafts": []}
    forward, propose = TargetModel.forward, DSparkProposer.propose

    def watched_forward(self: Any, batch: Any) -> Any:
        lengths = zip(batch.kv_lens, batch.query_lens, strict=True)
        seen["passes"].append((len(batch.token_ids), max(kv - rows for kv, rows in lengths)))
        return forward(self, batch)

    def watched_propose(self: Any, request: Any) -> Any:
        seen["drafts"].append((len(request.context_lens), max(request.context_lens)))
        return propose(self, request)

    with (
        patch.object(TargetModel, "forward", watched_forward),
        patch.object(DSparkProposer, "propose", watched_propose),
    ):
        yield seen


def test_passes_of_all_sizes_of_steps_are_timed_three_times(built: Built) -> None:
    with watched() as seen:
        costs = measure_costs(rig_of(built), limit_s=60)
    assert costs.passes.sizes == (1, 2, 4, 5, 8, 10, 16, 20, 30)
    assert costs.drafts.sizes == (1, 2, 4)
    far = built.engine.info.served_max_len - WIDTH - 1
    expected = [(size, WIDTH) for size in costs.passes.sizes] + [(1, far), (WIDTH, far)]
    assert sorted(seen["passes"]) == sorted(3 * expected)
    assert sorted(seen["drafts"]) == sorted(3 * [(1, WIDTH), (2, WIDTH), (4, WIDTH), (1, far)])


def test_the_minimum_of_the_turns_counts(built: Built) -> None:
    """A clock by which every reading is later, and by more each time: the first turn is fastest."""
    gaps = itertools.accumulate(itertools.count(1), lambda a, b: a + b * 1e-6)
    costs = measure_costs(rig_of(built), limit_s=60, clock=lambda: next(gaps))
    assert costs.passes.seconds[0] == pytest.approx(3e-6, abs=2e-6)


def test_a_disturbance_of_one_turn_changes_no_cost(built: Built) -> None:
    """On a machine that is three times as slow for the first four seconds."""
    now = [0.0]

    def work(seconds: float) -> None:
        now[0] += seconds * (3 if now[0] < 4 else 1)

    with (
        patch.object(CostRig, "run_pass", lambda rig, rows, context: work(0.01 * (4 + rows))),
        patch.object(CostRig, "run_draft", lambda rig, count, context: work(0.01 * count)),
    ):
        costs = measure_costs(rig_of(built), limit_s=60, clock=lambda: now[0])
    assert costs.passes.seconds == pytest.approx([0.01 * (4 + n) for n in costs.passes.sizes])
    assert costs.drafts.seconds == pytest.approx([0.01 * n for n in costs.drafts.sizes])


def test_a_slow_machine_measures_only_what_is_needed_and_once(built: Built) -> None:
    seconds = itertools.count()
    with watched() as seen:
        costs = measure_costs(rig_of(built), limit_s=2, clock=lambda: next(seconds))
    assert [rows for rows, _ in seen["passes"]] == [1, WIDTH, 4 * WIDTH]
    assert [count for count, _ in seen["drafts"]] == [1]
    assert costs.passes.sizes == (1, WIDTH, 4 * WIDTH)
    assert costs.context_per_row == costs.context_per_sequence == costs.context_per_draft == 0


def test_replayed_passes_are_measured_for_every_capture_size(draft_folder: Path) -> None:
    capture_sizes = (1, 2, 4, 6)
    graphed = graphed_engine(draft_folder=draft_folder, max_running_requests=RUNNING)
    replayed: list[tuple[int, int]] = []
    forward = GraphedTarget.forward

    def watched_forward(self: Any, batch: Any) -> Any:
        replayed.append((len(batch.query_lens), max(batch.query_lens)))
        return forward(self, batch)

    with patch.object(GraphedTarget, "forward", watched_forward):
        costs = measure_costs(rig_of(graphed, capture_sizes=capture_sizes), limit_s=60)
    assert costs.passes.sizes == tuple(capture_size * WIDTH for capture_size in capture_sizes)
    assert costs.drafts.sizes == capture_sizes
    assert costs.singles is not None
    assert costs.singles.sizes == capture_sizes
    assert (costs.capture_sizes, costs.width) == (capture_sizes, WIDTH)
    assert set(replayed) == {
        (capture_size, rows) for capture_size in capture_sizes for rows in (1, WIDTH)
    }


@pytest.mark.parametrize(
    "pool", [{"num_pages": 10, "page_size": 4}, {"num_pages": 3, "page_size": 16}]
)
def test_a_small_pool_is_enough(pool: dict[str, int], draft_folder: Path) -> None:
    small = tiny_engine(draft_folder=draft_folder, max_running_requests=RUNNING, **pool)
    costs = measure_costs(rig_of(small), limit_s=60)
    assert min(costs.passes.seconds) > 0


def test_an_engine_with_measured_costs_generates_the_targets_tokens(draft_folder: Path) -> None:
    prompt_ids = prompts(6, vocab=VOCAB)
    expected = [generate_alone(tiny_target(), p, 20) for p in prompt_ids]
    built = tiny_engine(draft_folder=draft_folder, draft_budget="auto", num_pages=24)
    details: Any = built.engine.info.details["draft"]
    assert details["budget"]["mode"] == "auto"
    assert set(details["budget"]["most_sequences_by_chance"]) == {"0.6", "1"}
    found = run_all(built, greedy_requests(prompt_ids, 20))
    assert [found[str(i)][0] for i in range(6)] == expected


@pytest.mark.parametrize(
    ("mode", "max_len"), [("always", 160), ("auto", 16)], ids=["always", "little room"]
)
def test_nothing_is_measured_where_there_is_no_choice(
    mode: str, max_len: int, draft_folder: Path
) -> None:
    settings: dict[str, Any] = {"draft_budget": mode, "native_kernels": "off"}
    target = tiny_target(max_len=max_len)
    with patch.object(draft_building, "measure_costs", side_effect=AssertionError):
        built = tiny_engine(target=target, draft_folder=draft_folder, **settings)
        without = tiny_engine(target=target, **settings)
    details: Any = built.engine.info.details["draft"]
    assert details["budget"] == {"mode": "always"}
    assert without.engine.info.details["draft"] is None
