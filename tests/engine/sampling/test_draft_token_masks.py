"""Token masks through the whole engine: drafts follow them, and their end ends the output."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from engine import EngineSamplingParams, FinishReason, Request
from engine.build import Built
from engine.sampling.draft_token_masks import DraftTokenMasks
from engine.scheduler.plan import ScheduledSequence
from engine.scheduler.sequence import SequenceState
from kv_pool import PageTable
from tests.support.engine.option_cases import ByParity
from tests.support.engine.running import oracle, run_told
from tests.support.engine.tiny_models import VOCAB, tiny_engine, tiny_target, write_tiny_draft

PROMPT = (5, 9, 60, 61)


@dataclass
class Script:
    """A mask that allows some tokens at each position, and ends after the last one."""

    places: Sequence[Sequence[int]]
    committed: list[int] = field(default_factory=list)

    def fill(self, draft_ids: Sequence[int], words: npt.NDArray[np.uint32]) -> None:
        prefix = [*self.committed, *draft_ids]
        for place, token_id in enumerate(prefix):
            assert token_id in self.places[place], (prefix, "filled after an excluded token")
        for token_id in self.places[len(prefix)] if len(prefix) < len(self.places) else ():
            words[token_id // 32] |= np.uint32(1 << token_id % 32)

    def commit(self, token_id: int) -> bool:
        self.committed.append(token_id)
        return len(self.committed) == len(self.places)


PLACES = [range(10, 30), range(40, 44), [77], range(10, 30), [80], [81], range(90, 120)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = write_tiny_draft(tmp_path_factory.mktemp("draft"))
    return tiny_engine(target=tiny_target(has_eos=False), draft_folder=folder)


@pytest.fixture(scope="module")
def plain() -> Built:
    return tiny_engine(target=tiny_target(has_eos=False))


def _request(name: str = "a", **params: object) -> Request:
    params = {"max_new_tokens": 30, **params}
    return Request(name, PROMPT, EngineSamplingParams(**params), token_mask=Script(PLACES))  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_end_of_a_mask_in_the_middle_of_a_block_ends_the_output(
    built: Built, temperature: float
) -> None:
    answer = run_told(built, [_request(temperature=temperature, seed=3)])["a"]
    assert len(answer.ids) == len(PLACES)
    assert all(t in place for t, place in zip(answer.ids, PLACES, strict=True))
    assert (answer.finish.reason, answer.finish.matched) == (FinishReason.STOP, None)
    assert answer.finish.num_output_tokens == len(PLACES)
    assert answer.finish.speculation.num_accepted > 0


def test_a_greedy_output_is_that_of_plain_decoding_whatever_the_drafts_are(
    built: Built, plain: Built
) -> None:
    expected = run_told(plain, [_request()])["a"].ids
    assert run_told(built, [_request()])["a"].ids == expected
    for good in range(5):
        with oracle([[*PROMPT, *expected, 1, 2, 3]], good=good, vocab=VOCAB):
            assert run_told(built, [_request()])["a"].ids == expected


def test_a_perfect_draft_does_not_continue_past_the_end_of_the_mask(built: Built) -> None:
    expected = run_told(built, [_request()])["a"].ids
    with oracle([[*PROMPT, *expected, 7, 7, 7, 7, 7]], good=5, vocab=VOCAB):
        answer = run_told(built, [_request()])["a"]
    assert answer.ids == expected


@pytest.mark.parametrize("min_new_tokens", [4, 5, 20])
def test_min_tokens_allows_a_stop_where_the_mask_allows_nothing_else(
    built: Built, min_new_tokens: int
) -> None:
    stops = frozenset({*range(10, 20), 80})  # the first place has other tokens, the fifth has not
    answer = run_told(built, [_request(min_new_tokens=min_new_tokens, stop_token_ids=stops)])["a"]
    assert answer.ids[0] >= 20
    assert len(answer.ids) == 5
    assert answer.finish.matched == 80


def test_the_end_of_a_mask_takes_precedence_over_min_tokens(built: Built) -> None:
    answer = run_told(built, [_request(min_new_tokens=20)])["a"]
    assert len(answer.ids) == len(PLACES)
    assert answer.finish.reason is FinishReason.STOP


def test_drafts_follow_the_mask(built: Built) -> None:
    """A random draft is rejected, except where the mask allows a single token."""
    single = [[10 + i] for i in range(20)]
    requests = [
        Request("s", PROMPT, EngineSamplingParams(max_new_tokens=30), token_mask=Script(single)),
        Request("p", PROMPT, EngineSamplingParams(max_new_tokens=20)),
    ]
    answers = run_told(built, requests)
    assert answers["s"].ids == [10 + i for i in range(20)]
    block = built.engine.info.block_size
    assert answers["s"].finish.speculation.mean_accept_length == pytest.approx(block + 1, abs=0.8)
    assert answers["p"].finish.speculation.mean_accept_length < 2


def test_each_mask_of_a_batch_is_filled_along_its_own_chain() -> None:
    device = torch.device("cpu")
    masks = [Script([[1, 2], [3], [4]]), None, Script([[5], [6, 7], [8]])]
    scheduled_seqs = [
        ScheduledSequence(
            SequenceState(
                request=Request(str(i), (1,), token_mask=mask),
                arrival=i,
                seed=0,
                arrived_at=0.0,
                table=PageTable(4),
                token_ids=[1],
            ),
            start=0,
            stop=1,
            num_drafts=2,
            samples=True,
        )
        for i, mask in enumerate(masks)
    ]
    found = DraftTokenMasks.of(scheduled_seqs, vocab_size=10, device=device)
    assert found is not None
    assert found.rows.tolist() == [0, 2]

    def at(k: int, *previous_ids: int) -> list[list[int]]:
        found.advance(k, torch.tensor(previous_ids))
        return [row.nonzero()[:, 0].tolist() for row in found.allowed()]

    everything = list(range(10))
    for _ in range(2):  # slot 0 starts a new chain
        assert at(0, 9, 9) == [[1, 2], [5]]
        assert found.few(2) == [[1, 2], [5]]
        assert found.few(1) is None
        assert found.allows(torch.tensor([1, 5]))
        assert not found.allows(torch.tensor([1, 1]))
        assert at(1, 2, 0) == [[3], everything]  # the second one is excluded
        assert at(2, 3, 1) == [[4], everything]
    assert DraftTokenMasks.of(scheduled_seqs[1:2], vocab_size=10, device=device) is None


def test_seeded_masked_outputs_are_the_same_alone_together_and_preempted(
    built: Built, tmp_path: Path
) -> None:
    def requests() -> list[Request]:
        return [
            Request(
                str(i),
                (*PROMPT, *range(i)),
                EngineSamplingParams(max_new_tokens=24, temperature=0.9, seed=i),
                token_mask=ByParity() if i % 2 else Script([range(5 * i, 5 * i + 60)] * 20),
            )
            for i in range(8)
        ]

    alone = {}
    for request in requests():
        alone |= run_told(built, [request])
    folder = write_tiny_draft(tmp_path / "draft")
    small = tiny_engine(
        target=tiny_target(has_eos=False),
        draft_folder=folder,
        num_pages=14,
        prefill_chunk_tokens=3,
    )
    crowded = run_told(small, requests())
    assert small.engine.snapshot().num_preemptions > 0
    for name, answer in crowded.items():
        assert answer.ids == alone[name].ids
