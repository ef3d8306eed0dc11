"""Lookups in other answers: within an owner and a salt, within a bound, and until a flush."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine import EngineSamplingParams, Request
from engine.draft_length.cost_model import Curve, StepCosts
from engine.proposers.lookup import LookupProposer
from engine.proposers.shared_answers import SharedAnswers
from engine.scheduler.sequence import SequenceState
from tests.support.engine.planning import sequence
from tests.support.engine.running import generate_alone, greedy_requests, prompts, run_all
from tests.support.engine.tiny_models import VOCAB, tiny_engine, tiny_target, write_tiny_draft

ANSWER = [11, 12, 13, 14, 15, 16, 17]
MANY = 1 << 20


def ended(arrival: int, answer: Sequence[int], **of_request: str) -> SequenceState:
    seq = sequence(arrival, [1, 2, 3])
    seq.token_ids[2:] = answer
    seq.request = replace(seq.request, **of_request)  # type: ignore[arg-type]
    return seq


def lookup_of(max_bytes: int = MANY) -> LookupProposer:
    return LookupProposer(max_tokens=7, min_match=2, shared=SharedAnswers(max_bytes=max_bytes))


def proposal(lookup: LookupProposer, seq: SequenceState) -> tuple[int, tuple[int, ...]]:
    lookup.begin_step()
    length = lookup.match_len(seq)
    return length, lookup.continuation(seq, 3) if length else ()


def test_the_text_after_the_same_tokens_in_another_answer_is_proposed() -> None:
    lookup = lookup_of()
    lookup.forget(ended(0, ANSWER))
    assert proposal(lookup, sequence(1, [50, 51, 12, 13, 14])) == (3, (15, 16, 17))


def test_nothing_after_the_end_of_an_answer_is_proposed() -> None:
    lookup = lookup_of()
    for i in range(2):
        lookup.forget(ended(i, ANSWER))
    assert proposal(lookup, sequence(2, [50, 15, 16]))[1] == (17,)
    assert proposal(lookup, sequence(3, [50, 16, 17])) == (0, ())


def test_prompts_are_not_shared() -> None:
    lookup = lookup_of()
    seq = sequence(0, [*ANSWER, 1])
    lookup.forget(seq)
    assert proposal(lookup, sequence(1, [50, 12, 13])) == (0, ())


def test_the_own_text_is_preferred_to_an_equal_match_elsewhere() -> None:
    lookup = lookup_of()
    lookup.forget(ended(0, ANSWER))
    assert proposal(lookup, sequence(1, [12, 13, 90, 91, 12, 13])) == (2, (90, 91, 12))
    own = proposal(lookup, sequence(2, [13, 90, 91, 92, 11, 12, 13]))
    assert own == (3, (14, 15, 16))


@pytest.mark.parametrize("field", ["owner", "cache_salt"])
def test_no_text_crosses_owners_or_salts(field: str) -> None:
    lookup = lookup_of()
    lookup.forget(ended(0, ANSWER, **{field: "a"}))
    for i, value in enumerate(("", "b", "a")):
        seq = ended(1 + i, [12, 13], **{field: value})
        assert proposal(lookup, seq) == ((2, (14, 15, 16)) if value == "a" else (0, ()))


def test_a_flush_forgets_all_answers_even_in_the_middle_of_a_text() -> None:
    lookup = lookup_of()
    lookup.forget(ended(0, ANSWER))
    seq = sequence(1, [50, 12, 13])
    assert proposal(lookup, seq)[0] == 2
    lookup.flush()
    assert proposal(lookup, seq) == (0, ())
    seq.token_ids.append(14)
    assert proposal(lookup, seq) == (0, ())


def test_a_seeded_request_uses_no_other_answer() -> None:
    lookup = lookup_of()
    lookup.forget(ended(0, ANSWER))
    seeded = sequence(1, [50, 12, 13], temperature=1.0, seed=1)
    assert proposal(lookup, seeded) == (0, ())


def test_a_growing_text_follows_its_match() -> None:
    lookup = lookup_of()
    lookup.forget(ended(0, ANSWER))
    seq = sequence(1, [50, 12, 13])
    found = []
    for token in (14, 15, 60, 11, 12):
        seq.token_ids.append(token)
        found.append(proposal(lookup, seq)[0])
    assert found == [3, 4, 0, 0, 2]


def test_answers_stay_within_the_bound_and_the_newest_are_kept() -> None:
    shared = SharedAnswers(max_bytes=100 * 454)
    for i in range(200):
        shared.add(ended(i, [1000 + i * 8 + k for k in range(8)]))
        shared.index(100)
        assert shared.num_tokens <= 100
    for _ in range(20):
        shared.index(100)
    match = shared.match(sequence(300, [1, 2, 1000 + 199 * 8, 1001 + 199 * 8]), None)
    assert match is not None
    assert match.length == 2
    old = shared.match(sequence(301, [1, 2, 1000, 1001]), None)
    assert old is not None
    assert old.length == 0


def test_many_groups_stay_within_the_bound() -> None:
    shared = SharedAnswers(max_bytes=100 * 454)
    for i in range(200):
        shared.add(ended(i, ANSWER, cache_salt=str(i)))
        shared.index(100)
        assert shared.num_tokens <= 100
    assert shared.match(ended(300, ANSWER, cache_salt="0"), None) is None
    newest = shared.match(ended(300, ANSWER, cache_salt="199"), None)
    assert newest is not None


def test_answers_wait_while_a_step_has_indexed_enough() -> None:
    shared = SharedAnswers(max_bytes=MANY)
    for i in range(3):
        shared.add(ended(i, ANSWER, cache_salt=str(i)))
    shared.index(1)
    assert [shared.match(ended(9, ANSWER, cache_salt=str(i)), None) is None for i in range(3)] == [
        False,
        True,
        True,
    ]


SHARED: dict[str, Any] = {
    "lookup": "auto",
    "lookup_shared_bytes": MANY,
    "costs": StepCosts(
        passes=Curve.through({1: 0.012, 8: 0.013, 64: 0.020}), drafts=Curve.through({1: 0.004})
    ),
}


def test_an_answer_that_is_requested_again_takes_fewer_steps_until_a_flush(tmp_path: Path) -> None:
    target = tiny_target(has_eos=False)
    given = prompts(1, vocab=VOCAB, low=20, high=21)
    expected = generate_alone(target, given[0], 40)
    built = tiny_engine(target=target, draft_folder=write_tiny_draft(tmp_path), **SHARED)
    steps, texts = [], []
    for turn in range(3):
        before = built.engine.snapshot().num_steps
        if turn == 2:
            built.engine.flush_cache()
        texts.append(run_all(built, greedy_requests(given, 40))["0"][0])
        steps.append(built.engine.snapshot().num_steps - before)
    assert texts == [expected] * 3
    assert steps[1] < 0.6 * steps[0]
    assert steps[2] > 0.9 * steps[0]


def test_a_seeded_request_has_the_same_output_whatever_was_answered_before(tmp_path: Path) -> None:
    folder = write_tiny_draft(tmp_path)
    given = prompts(1, vocab=VOCAB)[0]
    params = EngineSamplingParams(max_new_tokens=30, temperature=0.8, seed=3)
    seeded = Request("seeded", tuple(given), params)
    alone = run_all(tiny_engine(draft_folder=folder, **SHARED), [seeded])["seeded"][0]
    built = tiny_engine(draft_folder=folder, **SHARED)
    for i in range(4):
        run_all(built, [replace(seeded, request_id=str(i), params=replace(params, seed=i))])
    assert run_all(built, [seeded])["seeded"][0] == alone
