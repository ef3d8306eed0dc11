"""Lookups in a request's own text change when tokens are computed, and never which."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from draft import BlockRequest, DraftBlock, DSparkProposer
from engine import EngineSamplingParams, FinishReason, Request
from engine.draft_length.cost_model import Curve, StepCosts
from engine.proposers.lookup import LookupProposer
from engine.scheduler.sequence import SequenceState
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
ANY_MATCH: dict[str, Any] = {"lookup": "on", "lookup_min_match": 1}
# Rows are cheap and blocks are not, so that sequences differ in what pays.
COSTS = StepCosts(
    passes=Curve.through({1: 0.012, 8: 0.013, 16: 0.014, 64: 0.020}),
    drafts=Curve.through({1: 0.004, 8: 0.024}),
)


@pytest.fixture(scope="module")
def draft_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_draft(tmp_path_factory.mktemp("draft"))


@contextmanager
def found_in(texts: list[list[int]], *, good: int) -> Iterator[None]:
    """Replace continuations by the true text, right about `good` tokens."""

    def continuation(self: LookupProposer, seq: SequenceState, count: int) -> tuple[int, ...]:
        (text,) = [t for t in texts if t[: len(seq.token_ids)] == seq.token_ids]
        true = [*text[len(seq.token_ids) :], *[0] * count][:count]
        return tuple(t if i < good else (t + 1) % VOCAB for i, t in enumerate(true))

    with patch.object(LookupProposer, "continuation", continuation):
        yield


@pytest.mark.parametrize("name", sorted(CONFIGS))
@pytest.mark.parametrize("good", [None, 0, 3, 7])
def test_greedy_text_with_lookups_is_transformers_own(name: str, good: int | None) -> None:
    """good None is the lookup itself; n is one that is right about n tokens."""
    given = prompts(3, vocab=VOCAB)
    target = tiny_target(name)
    expected = [generate_alone(target, p, NEW_TOKENS) for p in given]
    built = tiny_engine(target=target, **ANY_MATCH)
    texts = [p + e for p, e in zip(given, expected, strict=True)]
    requests = greedy_requests(given, NEW_TOKENS)
    if good is None:
        found = run_all(built, requests)
    else:
        with found_in(texts, good=good):
            found = run_all(built, requests)
    assert [found[str(i)][0] for i in range(len(given))] == expected


@pytest.mark.parametrize("lookup", ["auto", "on"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_pages": 20},
        {"page_size": 1},
        {"prefill_chunk_tokens": 1},
        {"lookup_tokens": 1},
        {"lookup_tokens": 30},
        {"confidence_threshold": 0.3},
        {"prefix_cache": False, "max_running_requests": 2},
    ],
    ids=str,
)
def test_steps_that_mix_lookups_drafts_and_neither_leave_greedy_text_as_it_is(
    settings: dict[str, Any], lookup: str, draft_folder: Path
) -> None:
    given = prompts(8, vocab=VOCAB)
    target = tiny_target(has_eos=False)
    expected = [generate_alone(target, p, NEW_TOKENS) for p in given]
    built = tiny_engine(
        target=target,
        draft_folder=draft_folder,
        costs=COSTS,
        **{"max_running_requests": 8, "lookup_min_match": 1, **settings, "lookup": lookup},
    )
    texts = [p + e for p, e in zip(given, expected, strict=True)]
    if "confidence_threshold" in settings:  # an oracle has no confidences
        found = run_all(built, greedy_requests(given, NEW_TOKENS))
    else:
        with oracle(texts, good=2, vocab=VOCAB):
            found = run_all(built, greedy_requests(given, NEW_TOKENS))
    assert [found[str(i)][0] for i in range(len(given))] == expected
    snapshot = built.engine.snapshot()
    assert snapshot.sources["lookup"].num_rounds > 0
    assert snapshot.num_rounds == sum(
        snapshot.sources[name].num_rounds for name in ("draft", "lookup")
    )
    assert snapshot.num_used_pages == 0


def test_the_drafts_context_is_written_in_rounds_of_lookups(draft_folder: Path) -> None:
    """Blocks after lookups are those of an engine that drafts in every round."""
    target = tiny_target(has_eos=False)
    given = prompts(1, vocab=VOCAB, low=20, high=21)
    text = [given[0] + generate_alone(target, given[0], 30)]
    blocks: list[dict[int, list[int]]] = []
    propose = DSparkProposer.propose

    def watched(self: DSparkProposer, request: BlockRequest) -> DraftBlock:
        block = propose(self, request)
        blocks[-1][request.context_lens[0]] = block.draft_ids[0].tolist()
        return block

    def now_and_then(self: LookupProposer, seq: SequenceState) -> int:
        return 4 if len(seq.token_ids) % 3 == 0 else 0

    for settings in ({}, {"lookup": "on"}):
        blocks.append({})
        built = tiny_engine(target=target, draft_folder=draft_folder, **settings)
        with (
            patch.object(DSparkProposer, "propose", watched),
            patch.object(LookupProposer, "match_len", now_and_then),
            found_in(text, good=1),
        ):
            run_all(built, greedy_requests(given, 30))
    both = blocks[0].keys() & blocks[1].keys()
    assert len(both) > 5
    assert len(blocks[1]) < len(blocks[0])
    assert all(blocks[0][at] == blocks[1][at] for at in both)


@pytest.mark.parametrize("lookup", ["auto", "on"])
def test_a_seeded_request_looks_up_alike_alone_in_a_crowd_and_preempted(
    lookup: str, draft_folder: Path
) -> None:
    given = prompts(8, vocab=8)
    settings: dict[str, Any] = {"lookup": lookup, "lookup_min_match": 1, "costs": COSTS}
    seeded, others = seeded_among_others(given, max_new_tokens=30, temperature=0.05)
    alone = {}
    for request in seeded:
        alone |= run_all(tiny_engine(draft_folder=draft_folder, **settings), [request])
    assert any("lookup" in finish.speculation.sources for _, finish in alone.values())
    for pages in (128, 30):
        built = tiny_engine(
            draft_folder=draft_folder, max_running_requests=8, num_pages=pages, **settings
        )
        together = run_all(built, [*others, *seeded])
        for name, (ids, finish) in alone.items():
            assert together[name][0] == ids
            assert together[name][1].speculation == finish.speculation


def test_a_stop_inside_a_lookup_cuts_there() -> None:
    given = prompts(1, vocab=VOCAB)
    target = tiny_target(has_eos=False)
    text = generate_alone(target, given[0], NEW_TOKENS)
    stop = next(i for i in range(4, NEW_TOKENS) if text[i] not in text[:i])
    params = EngineSamplingParams(
        max_new_tokens=NEW_TOKENS, stop_token_ids=frozenset({text[stop]}), ignore_eos=True
    )
    built = tiny_engine(target=target, **ANY_MATCH)
    with found_in([given[0] + text], good=7):
        found = run_all(built, [Request("a", tuple(given[0]), params)])
    ids, finish = found["a"]
    assert ids == text[: stop + 1]
    assert finish.reason is FinishReason.STOP
    assert built.engine.snapshot().num_used_pages == 0


@pytest.mark.parametrize("seed", range(3))
def test_any_mixture_of_lookups_leaves_greedy_text_as_it_is(seed: int, draft_folder: Path) -> None:
    rng = random.Random(seed)
    given = prompts(6, vocab=VOCAB)
    target = tiny_target()
    expected = [generate_alone(target, p, NEW_TOKENS) for p in given]

    def any_match(self: LookupProposer, seq: SequenceState) -> int:
        return rng.choice([0, 0, 1, 5, 20])

    def any_tokens(self: LookupProposer, seq: SequenceState, count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(VOCAB) for _ in range(count))

    built = tiny_engine(target=target, draft_folder=draft_folder, costs=COSTS, lookup="auto")
    with (
        patch.object(LookupProposer, "match_len", any_match),
        patch.object(LookupProposer, "continuation", any_tokens),
    ):
        found = run_all(built, greedy_requests(given, NEW_TOKENS))
    assert [found[str(i)][0] for i in range(len(given))] == expected
