"""The profile of a decode round: bytes, times, and the state of the engine afterwards."""

import json
from pathlib import Path
from statistics import median

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from draft import BlockPass
from dspark.bench.profile.decode_steps import PARTS, record_decode_steps
from dspark.bench.profile.first_token import products_case, prompt_case
from dspark.bench.profile.pass_cases import PassCases
from dspark.bench.profile.profile import WHOLE, Part, Profile
from dspark.bench.profile.profiling import NUM_REPORTS, contexts_within, measure_profile
from dspark.bench.profile.timing import difference_ms, seconds_in_turns
from dspark.bench.profile.traffic import DraftTraffic, TargetTraffic, weight_bytes
from dspark.bench.report.statistics import Spread
from dspark.bench.workloads.timing import marked_calls
from engine.build import Built
from engine.core.offline import drive
from tests.support.bench.runs import workload
from tests.support.engine.tiny_models import (
    CPU,
    HIDDEN,
    LAYERS,
    VOCAB,
    tiny_engine,
    tiny_target,
    write_tiny_draft,
)

FLOAT = 4  # bytes
LOAD = workload(3, max_tokens=12, high=12)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = write_tiny_draft(tmp_path_factory.mktemp("draft"))
    return tiny_engine(target=tiny_target(has_eos=False), draft_folder=folder)


@pytest.fixture(scope="module")
def profile(built: Built) -> Profile:
    labels: list[str] = []
    found = measure_profile(built, LOAD, turns=2, device=CPU, report=labels.append)
    assert len(labels) == NUM_REPORTS
    return found


# -- what must be read -----------------------------------------------------------------------


def test_a_target_pass_reads_its_layers_its_head_and_its_keys_and_values(built: Built) -> None:
    traffic = TargetTraffic.of(built)
    heads, kv_heads, dim, inner = 4, 2, 16, 64
    attention = HIDDEN * dim * (heads + kv_heads + kv_heads) + heads * dim * HIDDEN
    layer = attention + 3 * HIDDEN * inner + 2 * HIDDEN  # two norms
    assert traffic.layers == FLOAT * LAYERS * layer
    assert traffic.head == FLOAT * VOCAB * HIDDEN
    assert traffic.kv_per_token == FLOAT * LAYERS * 2 * kv_heads * dim


def test_views_of_one_storage_count_by_their_own_size() -> None:
    storage = torch.zeros(100, 4)
    layer = nn.Linear(4, 10, bias=False)
    layer.weight = nn.Parameter(storage[:10])
    tied = nn.ModuleList([layer, nn.Linear(4, 10, bias=False)])
    tied[1].weight = layer.weight
    assert weight_bytes(tied) == FLOAT * 40


def test_contexts_end_where_the_model_does() -> None:
    assert contexts_within(10_000) == [128, 1024, 4096, 8192]
    assert contexts_within(8192 - 32) == [128, 1024, 4096, 8160]
    assert contexts_within(2000) == [128, 1024]
    assert contexts_within(50) == [50]


def test_a_draft_round_reads_the_markov_heads_output_once_for_every_token(built: Built) -> None:
    traffic = DraftTraffic.of(built)
    assert traffic is not None
    block_size, rank, kv_heads, dim, taps, layers = 4, 8, 2, 12, 3, 2
    assert traffic.chain == FLOAT * block_size * VOCAB * rank
    assert traffic.head == FLOAT * VOCAB * HIDDEN
    assert traffic.kv_per_token == FLOAT * layers * 2 * kv_heads * dim
    written = taps * HIDDEN * HIDDEN + layers * 2 * kv_heads * dim * HIDDEN
    assert traffic.context_write == FLOAT * written
    assert DraftTraffic.of(tiny_engine()) is None


def test_a_part_is_compared_with_the_time_of_reading_its_bytes() -> None:
    part = Part("x", Spread.of([3.0]), num_bytes=2_000_000, how=WHOLE)
    assert part.limit_ms(1e9) == pytest.approx(2.0)
    assert part.of_limit(1e9) == pytest.approx(1.5)
    assert Part("x", Spread.of([-0.1]), 100, WHOLE).of_limit(1e9) is None  # noise
    assert Part("x", Spread.of([3.0]), 0, WHOLE).of_limit(1e9) is None


# -- clocks ----------------------------------------------------------------------------------


def test_cases_are_interleaved_in_alternating_order() -> None:
    order: list[str] = []
    cases = {name: (lambda name=name: order.append(name)) for name in "ab"}
    found = seconds_in_turns(cases, turns=3, device=CPU, warm_up=1)
    assert "".join(order) == "abbaabba"
    assert {name: len(values) for name, values in found.items()} == {"a": 3, "b": 3}


def test_a_difference_is_taken_turn_by_turn() -> None:
    assert difference_ms([0.5, 1.0], [0.25, 0.25]) == Spread.of([250.0, 750.0])


def test_a_method_is_restored_after_its_calls_were_marked() -> None:
    class Owner:
        def work(self, a: int, *, b: int) -> int:
            return a + b

    owner = Owner()
    with marked_calls(owner, "work", iter(range(9)).__next__) as marks:
        assert owner.work(1, b=2) == 3
        assert owner.work(2, b=2) == 4
    assert marks == [(0, 1), (2, 3)]
    assert vars(owner) == {}


# -- rounds ----------------------------------------------------------------------------------


def test_rounds_exclude_prefill_and_their_parts_add_up(built: Built) -> None:
    built.engine.flush_cache()
    before = built.engine.snapshot().num_steps
    found = record_decode_steps(built, LOAD)
    taken = built.engine.snapshot().num_steps - before
    assert len(found.steps) == taken - 3  # each request has one step over its prompt
    for i, seconds in enumerate(found.steps):
        assert sum(found.parts[part][i] for part in PARTS) == pytest.approx(seconds)
        assert found.parts["target forward"][i] > 0
    assert found.step_ms.median == pytest.approx(1000 * median(found.steps))


def test_a_profile_has_every_part_and_every_number_goes_into_json(profile: Profile) -> None:
    values = json.loads(json.dumps(profile.values(), allow_nan=False))
    assert values["window"] == 5
    assert len(values["parts"]) == len(profile.parts) == 11
    assert {"target forward, 5 rows", "draft LM head"} <= set(values["parts"])
    assert {"Markov chain and confidences", "draft block besides"} <= set(values["parts"])
    assert set(values["pass_by_rows"]) == {"1", "2", "4", "6", "8", "16", "32"}
    assert set(values["pass_by_context"]) == {"128"}  # what fits into 160 tokens
    assert (
        values["pass_by_rows"]["1"]["bytes"]
        < values["pass_by_context"]["128"]["1 row"]["bytes"] + 1
    )
    assert values["bandwidth_bytes_per_s"]["median"] > 0
    assert set(values["prefill_tokens_per_s"]) == {"64", "128"}
    assert values["prefill_best_chunk"] in (64, 128)
    table = profile.lines()
    assert table[0].startswith("memory read by 1 threads: ")
    assert any(line.startswith("draft round: block, head and chain") for line in table)
    assert profile.holds


@pytest.mark.parametrize("native", ["auto", "off"])
def test_a_round_without_its_chain_is_the_rest_of_it(native: str, tmp_path: Path) -> None:
    """Both implementations can stop at the base logits."""
    built = tiny_engine(
        target=tiny_target(has_eos=False),
        draft_folder=write_tiny_draft(tmp_path),
        native_kernels=native,
    )
    run = PassCases(built, CPU).draft_pass(context=20)
    assert run is not None
    with torch.inference_mode():
        found = run()
    assert isinstance(found, BlockPass)
    assert found.draft_ids is None
    assert found.base_logits.shape == (1, 4, VOCAB)


def test_a_round_in_one_graph_keeps_block_and_chain_together(
    built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PassCases, "draft_pass", lambda self, *, context: None)
    found = measure_profile(built, LOAD, turns=1, device=CPU, report=lambda label: None)
    names = {part.name.strip() for part in found.parts}
    assert "draft block and chain besides" in names
    assert "Markov chain and confidences" not in names


def test_the_first_token_is_compared_with_the_products_of_its_prompt(profile: Profile) -> None:
    values = json.loads(json.dumps(profile.values()))["first_token"]
    assert values["prompt_tokens"] == 159  # of 400: what the model has room for
    assert values["ttft_ms"]["median"] > 0
    assert values["products_by_pytorch_ms"]["median"] > 0
    assert values["ttft_of_products"]["median"] == pytest.approx(
        values["ttft_ms"]["median"] / values["products_ms"]["median"]
    )
    assert profile.lines()[-1].startswith("engine / products ")


@pytest.mark.parametrize("has_draft", [True, False])
def test_the_products_of_a_first_token_are_those_of_its_step(
    has_draft: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target's layers and the draft's context write of all rows, and the head of one."""
    plain = tiny_engine(
        target=tiny_target(has_eos=False),
        draft_folder=write_tiny_draft(tmp_path) if has_draft else None,
        native_kernels="off",
    )
    made, multiply = [0], F.linear

    def counting(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        made[-1] += x.numel() * len(weight)
        return multiply(x, weight, bias)

    monkeypatch.setattr(F, "linear", counting)
    with torch.inference_mode():
        prompt_case(plain, 40)()
        made.append(0)
        products_case(plain, 40, CPU, plain.linear)()
    assert made[0] == made[1] > 0


def test_an_engine_without_a_draft_has_a_profile_of_its_target(built: Built) -> None:
    plain = tiny_engine(target=built.target)
    found = measure_profile(plain, LOAD, turns=1, device=CPU, report=lambda label: None)
    assert found.window == 1
    assert len(found.parts) == 4
    assert all(len(parts) == 1 for parts in found.by_context.values())


def test_an_engine_generates_the_same_text_after_a_profile(built: Built) -> None:
    with torch.inference_mode():
        built.engine.flush_cache()
    first = [run.token_ids for run in drive(built.engine, LOAD.requests(), concurrency=2)]
    measure_profile(built, LOAD, turns=1, device=CPU, report=lambda label: None)
    again = [run.token_ids for run in drive(built.engine, LOAD.requests(), concurrency=2)]
    assert again == first
