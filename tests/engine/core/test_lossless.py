"""The central promise: drafts change the speed and never the text."""

import dataclasses
import itertools
import random
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from draft import BlockRequest, DraftBlock, DSparkProposer
from engine import EngineSamplingParams, FinishReason, Request
from engine.build import Built
from engine.draft_length.cost_model import Curve, StepCosts
from tests.support.engine.gemma4 import write_tiny_gemma4_draft
from tests.support.engine.planning import scripted_drafts
from tests.support.engine.running import (
    generate_alone,
    greedy_requests,
    oracle,
    prompts,
    run_all,
    seeded_among_others,
)
from tests.support.engine.tiny_models import (
    CONFIGS,
    VOCAB,
    tiny_engine,
    tiny_target,
    write_tiny_draft,
)

NEW_TOKENS = 24


@pytest.fixture(scope="module")
def draft_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_draft(tmp_path_factory.mktemp("draft"))


def _expected(
    name: str, count: int, *, has_eos: bool = True
) -> tuple[list[list[int]], list[list[int]]]:
    given = prompts(count, vocab=VOCAB)
    target = tiny_target(name, has_eos=has_eos)
    return given, [generate_alone(target, p, NEW_TOKENS) for p in given]


def _greedy_texts(
    built: Built, given: list[list[int]], expected: list[list[int]], good: int | None
) -> list[list[int]]:
    """Generate for all prompts at once, with a draft whose first `good` tokens are correct."""
    texts = [p + e for p, e in zip(given, expected, strict=True)]
    drafts = nullcontext() if good is None else oracle(texts, good=good, vocab=VOCAB)
    with drafts:
        found = run_all(built, greedy_requests(given, NEW_TOKENS))
    return [found[str(i)][0] for i in range(len(given))]


@pytest.mark.parametrize("name", sorted(CONFIGS))
@pytest.mark.parametrize("good", [None, 0, 2, 4])
def test_greedy_text_equals_transformers_for_any_target_and_any_draft(
    name: str, good: int | None, draft_folder: Path
) -> None:
    """good None is the random draft itself; n is a draft that is right about n tokens."""
    given, expected = _expected(name, 4)
    built = tiny_engine(target=tiny_target(name), draft_folder=draft_folder)
    assert _greedy_texts(built, given, expected, good) == expected


@pytest.mark.parametrize("shares_kv", [True, False])
@pytest.mark.parametrize("stacked", ["on", "off"])
@pytest.mark.parametrize("good", [None, 2])
def test_a_gemma4_draft_leaves_the_text_of_a_gemma4_target(
    shares_kv: bool, stacked: str, good: int | None, tmp_path: Path
) -> None:
    given, expected = _expected("gemma4", 4)
    folder = write_tiny_gemma4_draft(tmp_path, attention_k_eq_v=shares_kv)
    built = tiny_engine(
        target=tiny_target("gemma4"), draft_folder=folder, stacked_context_kv=stacked
    )
    assert _greedy_texts(built, given, expected, good) == expected
    assert built.engine.snapshot().num_draft_tokens > 0


@pytest.mark.parametrize(
    "settings",
    [
        {"page_size": 1},
        {"page_size": 16, "num_pages": 40},
        {"page_size": 64, "num_pages": 16},
        {"prefill_chunk_tokens": 1},
        {"prefill_chunk_tokens": 7},
        {"prefill_chunk_tokens": 512},
        {"max_running_requests": 1},
        {"num_pages": 20},
        {"num_pages": 20, "prefill_chunk_tokens": 7},
        {"stacked_context_kv": "off"},
        {"stacked_context_kv": "on"},
        {"prefix_cache": False},
        {"num_draft_tokens": 1},
        {"num_draft_tokens": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("good", [None, 2])
def test_greedy_text_is_the_same_under_any_setting(
    settings: dict[str, object], good: int | None, draft_folder: Path
) -> None:
    given, expected = _expected("llama", 8)
    built = tiny_engine(draft_folder=draft_folder, **settings)
    assert _greedy_texts(built, given, expected, good) == expected
    if settings.get("num_pages") == 20:
        assert built.engine.snapshot().num_preemptions > 0


def test_plain_decoding_says_the_same() -> None:
    given, expected = _expected("llama", 8)
    found = run_all(tiny_engine(), greedy_requests(given, NEW_TOKENS))
    assert [found[str(i)][0] for i in range(8)] == expected


def test_a_perfect_drafter_needs_a_fifth_of_the_rounds(draft_folder: Path) -> None:
    given, expected = _expected("llama", 1, has_eos=False)
    built = tiny_engine(target=tiny_target(has_eos=False), draft_folder=draft_folder)
    texts = [given[0] + expected[0]]
    with oracle(texts, good=4, vocab=VOCAB):
        found = run_all(built, greedy_requests(given, 21))
    finish = found["0"][1]
    assert found["0"][0] == expected[0][:21]
    assert finish.speculation.accept_counts == (0, 0, 0, 0, 4)
    assert finish.speculation.mean_accept_length == 5.0


def test_a_second_request_with_the_same_prompt_hits_the_cache_and_drafts_as_well(
    draft_folder: Path,
) -> None:
    """A hit restores both storages: without draft context the drafts would differ."""
    built = tiny_engine(draft_folder=draft_folder)
    prompt = tuple(prompts(1, vocab=VOCAB, low=30, high=31)[0])
    params = EngineSamplingParams(max_new_tokens=30)
    first = run_all(built, [Request("a", prompt, params)])["a"]
    second = run_all(built, [Request("b", prompt, params)])["b"]
    assert first[1].num_cached_tokens == 0
    assert second[1].num_cached_tokens == 28
    assert second[0] == first[0]
    assert second[1].speculation == first[1].speculation


def test_preemption_and_chunking_do_not_change_what_is_drafted(draft_folder: Path) -> None:
    given = prompts(6, vocab=VOCAB)
    requests = greedy_requests(given, 30)
    calm = run_all(tiny_engine(draft_folder=draft_folder), requests)
    tight_engine = tiny_engine(draft_folder=draft_folder, num_pages=28, prefill_chunk_tokens=5)
    tight = run_all(tight_engine, requests)
    assert tight_engine.engine.snapshot().num_preemptions > 0
    for name in calm:
        assert tight[name][0] == calm[name][0]
        assert tight[name][1].speculation == calm[name][1].speculation


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 20},
        {"temperature": 1.3, "top_p": 0.8},
        {"temperature": 1.0, "min_p": 0.05},
    ],
    ids=str,
)
def test_a_seeded_request_is_the_same_alone_in_company_and_after_preemption(
    params: dict[str, float], draft_folder: Path
) -> None:
    given = prompts(6, vocab=VOCAB)
    requests = [
        Request(
            str(i),
            tuple(p),
            EngineSamplingParams(max_new_tokens=24, seed=100 + i, **params),  # type: ignore[arg-type]
        )
        for i, p in enumerate(given)
    ]
    alone = {}
    for request in requests:
        alone |= run_all(tiny_engine(draft_folder=draft_folder), [request])
    together = run_all(tiny_engine(draft_folder=draft_folder), requests)
    backwards = run_all(
        tiny_engine(draft_folder=draft_folder, prefill_chunk_tokens=7), requests[::-1]
    )
    tight_engine = tiny_engine(draft_folder=draft_folder, num_pages=26)
    tight = run_all(tight_engine, requests)
    assert tight_engine.engine.snapshot().num_preemptions > 0
    for name, (ids, _) in alone.items():
        assert together[name][0] == ids
        assert backwards[name][0] == ids
        assert tight[name][0] == ids
    assert len({tuple(ids) for ids, _ in alone.values()}) == len(requests)


def test_greedy_and_sampling_requests_share_steps_without_touching_each_other(
    draft_folder: Path,
) -> None:
    given = prompts(6, vocab=VOCAB)
    mixed = [
        Request(
            str(i),
            tuple(p),
            EngineSamplingParams(max_new_tokens=20, temperature=float(i % 2), seed=i),
        )
        for i, p in enumerate(given)
    ]
    together = run_all(tiny_engine(draft_folder=draft_folder), mixed)
    for request in mixed:
        alone = run_all(tiny_engine(draft_folder=draft_folder), [request])
        assert together[request.request_id][0] == alone[request.request_id][0]


@pytest.mark.parametrize("position", range(12))
def test_an_end_of_sequence_in_mid_block_ends_there(position: int, draft_folder: Path) -> None:
    given, expected = _expected("llama", 1, has_eos=False)
    first_seen = expected[0].index(expected[0][position])
    stop = EngineSamplingParams(
        max_new_tokens=NEW_TOKENS, stop_token_ids=frozenset({expected[0][position]})
    )
    built = tiny_engine(target=tiny_target(has_eos=False), draft_folder=draft_folder)
    with oracle([given[0] + expected[0]], good=4, vocab=VOCAB):
        ids, finish = run_all(built, [Request("a", tuple(given[0]), stop)])["a"]
    assert ids == expected[0][: first_seen + 1]
    assert finish.reason is FinishReason.STOP
    assert finish.num_output_tokens == first_seen + 1


def test_the_context_limit_is_reached_and_never_passed(draft_folder: Path) -> None:
    target = tiny_target(max_len=48)
    prompt = prompts(1, vocab=VOCAB, low=30, high=31)[0]
    built = tiny_engine(target=target, draft_folder=draft_folder)
    ids, finish = run_all(
        built,
        [Request("a", tuple(prompt), EngineSamplingParams(max_new_tokens=18, ignore_eos=True))],
    )["a"]
    assert len(prompt) + len(ids) == 48
    assert finish.reason is FinishReason.LENGTH
    assert ids == generate_alone(tiny_target(has_eos=False), prompt, 18)


def test_switching_the_context_writer_between_steps_changes_nothing(draft_folder: Path) -> None:
    given = prompts(3, vocab=VOCAB)
    calm = run_all(tiny_engine(draft_folder=draft_folder), greedy_requests(given, 30))
    built = tiny_engine(draft_folder=draft_folder)
    ids: dict[str, list[int]] = {}
    with torch.inference_mode():
        for request in greedy_requests(given, 30):
            built.engine.add(request)
        while not built.engine.is_idle:
            path = built.engine.context_kv_status().path
            built.engine.set_context_kv("off" if path == "stacked" else "on")
            for event in built.engine.step():
                ids.setdefault(event.request_id, []).extend(event.token_ids)
                if event.finish is not None:
                    assert event.finish.speculation == calm[event.request_id][1].speculation
    assert ids == {name: found for name, (found, _) in calm.items()}


# One stream drafts all, a crowd nothing: see tests/engine/proposers/test_planner.py.
COSTS = StepCosts(
    passes=Curve.through({1: 0.012, 5: 0.014, 8: 0.019, 16: 0.035, 40: 0.080}),
    drafts=Curve.through({1: 0.0025, 8: 0.007}),
)


@pytest.mark.parametrize("good", [None, 0, 2, 4])
def test_drafts_by_load_leave_greedy_text_as_it_is(good: int | None, draft_folder: Path) -> None:
    given, expected = _expected("llama", 8, has_eos=False)
    built = tiny_engine(
        target=tiny_target(has_eos=False),
        draft_folder=draft_folder,
        costs=COSTS,
        max_running_requests=8,
        prefill_chunk_tokens=7,  # so the load comes and goes
    )
    assert _greedy_texts(built, given, expected, good) == expected
    seen = built.engine.snapshot()
    assert seen.num_draft_tokens > 0
    assert seen.num_withheld_draft_tokens > 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "settings",
    [{}, {"num_pages": 20, "prefill_chunk_tokens": 7}, {"confidence_threshold": 0.3}],
    ids=str,
)
def test_any_number_of_drafts_leaves_greedy_text_as_it_is(
    settings: dict[str, object], seed: int, draft_folder: Path
) -> None:
    given, expected = _expected("llama", 8)
    numbers = random.Random(seed)

    def anything(caps: Sequence[int]) -> list[int]:
        return [numbers.randint(0, cap) for cap in caps]

    built = tiny_engine(draft_folder=draft_folder, costs=COSTS, **settings)
    good = None if "confidence_threshold" in settings else 2  # an oracle has no confidences
    with scripted_drafts(anything, block_size=4):
        assert _greedy_texts(built, given, expected, good) == expected


@pytest.mark.parametrize("costs", [None, COSTS], ids=["every draft", "by load"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_requests_with_different_numbers_of_draft_tokens_share_steps(
    temperature: float, costs: StepCosts | None, draft_folder: Path
) -> None:
    """A seeded request with its own number is the same alone; greedy text never depends on it."""
    given = prompts(6, vocab=VOCAB)

    def requests(limits: list[int | None]) -> list[Request]:
        params = EngineSamplingParams(max_new_tokens=16, temperature=temperature, ignore_eos=True)
        return [
            Request(
                str(i), tuple(p), dataclasses.replace(params, seed=i, num_draft_tokens=limits[i])
            )
            for i, p in enumerate(given)
        ]

    def engine() -> Built:
        return tiny_engine(draft_folder=draft_folder, costs=costs, max_running_requests=8)

    mixed = [0, 1, 2, 3, 99, None]
    built = engine()
    together = run_all(built, requests(mixed))
    for i, each in enumerate(requests(mixed)):
        alone = engine()
        assert run_all(alone, [each])[str(i)][0] == together[str(i)][0]
        drafted = alone.engine.snapshot().num_draft_tokens
        assert (drafted == 0) == (mixed[i] == 0)
    assert built.engine.snapshot().num_capped_rounds > 0
    if temperature == 0:
        free = run_all(engine(), requests([None] * 6))
        assert {k: v[0] for k, v in free.items()} == {k: v[0] for k, v in together.items()}


def test_a_number_of_draft_tokens_has_no_effect_without_a_draft() -> None:
    params = EngineSamplingParams(max_new_tokens=9, num_draft_tokens=2, ignore_eos=True)
    built = tiny_engine()
    found = run_all(built, [Request("a", (5, 9), params)])
    plain = dataclasses.replace(params, num_draft_tokens=None)
    assert found["a"][0] == run_all(tiny_engine(), [Request("a", (5, 9), plain)])["a"][0]
    assert built.engine.snapshot().num_capped_rounds == 0


def test_a_seeded_request_is_the_same_whatever_load_does_to_the_others(draft_folder: Path) -> None:
    given = prompts(8, vocab=VOCAB)
    seeded, others = seeded_among_others(given, max_new_tokens=20, temperature=0.9)
    alone = {}
    for request in seeded:
        alone |= run_all(tiny_engine(draft_folder=draft_folder), [request])
    built = tiny_engine(draft_folder=draft_folder, costs=COSTS, max_running_requests=8)
    together = run_all(built, [*others, *seeded])
    assert built.engine.snapshot().num_withheld_draft_tokens > 0
    for name, (ids, finish) in alone.items():
        assert together[name][0] == ids
        assert together[name][1].speculation == finish.speculation


def _blocks(built: Built, given: list[list[int]]) -> dict[int, list[int]]:
    """Draft tokens of every draft pass for one sequence, by its anchor's position."""
    blocks: dict[int, list[int]] = {}
    propose = DSparkProposer.propose

    def watched(self: DSparkProposer, request: BlockRequest) -> DraftBlock:
        block = propose(self, request)
        blocks[request.context_lens[0]] = block.draft_ids[0].tolist()
        return block

    with patch.object(DSparkProposer, "propose", watched):
        run_all(built, greedy_requests(given, 30))
    return blocks


def test_drafts_begin_late_as_if_they_had_never_been_away(draft_folder: Path) -> None:
    """A step without drafts runs no draft pass, and writes the context all the same."""
    given = prompts(1, vocab=VOCAB, low=20, high=21)
    steps = itertools.count()

    def late(caps: Sequence[int]) -> list[int]:
        return [cap if next(steps) >= 6 else 0 for cap in caps]

    with scripted_drafts(late, block_size=4):
        by_load = _blocks(
            tiny_engine(target=tiny_target(has_eos=False), draft_folder=draft_folder, costs=COSTS),
            given,
        )
    always = _blocks(
        tiny_engine(target=tiny_target(has_eos=False), draft_folder=draft_folder), given
    )
    assert min(by_load) == 20 + 6
    both = by_load.keys() & always.keys()
    assert len(both) > 10
    assert all(by_load[position] == always[position] for position in both)
