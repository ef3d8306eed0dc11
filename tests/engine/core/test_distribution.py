"""Sampling through the whole engine: a few tokens, jointly, against the target alone."""

import functools
import itertools
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from draft import BlockRequest, DraftBlock, DSparkProposer, inverse_cdf
from engine import EngineSamplingParams, Request
from engine.build import Built
from engine.draft_length.confidence_cutoff import ConfidenceThreshold
from engine.draft_length.cost_model import Curve, StepCosts
from engine.loading.target import LoadedTarget
from engine.proposers.confidence_schedule import ConfidenceSchedule
from engine.proposers.lookup import LookupProposer
from engine.sampling import verify_step as verifier
from engine.sampling.rejection import Verdict, verify_point_mass, verify_sampled
from engine.sampling.target_distribution import TokenProbs
from engine.scheduler.plan import StepPlan
from engine.scheduler.sequence import SequenceState
from tests.support.engine.eight_tokens import (
    BLOCK,
    PROMPT,
    VOCAB,
    eight_token_engine,
    eight_token_target,
    gemma4_of_eight_tokens,
)
from tests.support.engine.gemma4 import write_tiny_gemma4_draft
from tests.support.engine.planning import scripted_drafts
from tests.support.engine.running import run_all
from tests.support.engine.tiny_models import tiny_engine

NUM_SAMPLES = 50_000


@pytest.fixture(scope="module")
def target() -> LoadedTarget:
    return eight_token_target()


@pytest.fixture(scope="module")
def next_probs(target: LoadedTarget) -> dict[tuple[int, ...], Tensor]:
    """p(next | prompt + prefix) of the dense model for every prefix of up to three tokens."""
    return _next_probs(target)


def _next_probs(target: LoadedTarget) -> dict[tuple[int, ...], Tensor]:
    table = {}
    for length in range(4):
        for prefix in itertools.product(range(VOCAB), repeat=length):
            with torch.inference_mode():
                logits = target.model(torch.tensor([[*PROMPT, *prefix]]), use_cache=False).logits
            table[prefix] = torch.softmax(logits[0, -1].double(), -1)
    return table


def _expected(next_probs: dict[tuple[int, ...], Tensor], num_tokens: int = 3) -> Tensor:
    """p of every text of num_tokens tokens, the last one varying fastest."""
    joint = torch.ones(1, dtype=torch.float64)
    for length in range(num_tokens):
        prefixes = itertools.product(range(VOCAB), repeat=length)
        rows = torch.stack([next_probs[prefix] for prefix in prefixes])
        joint = (joint[:, None] * rows).flatten()
    return joint


@contextmanager
def well_informed_drafts(next_probs: dict[tuple[int, ...], Tensor]) -> Iterator[None]:
    """Drafts drawn from the target's own distribution, slightly flattened."""

    def flatten(p: Tensor) -> Tensor:
        return (0.9 * p + 0.1 / VOCAB).float()

    def propose(self: DSparkProposer, request: BlockRequest) -> DraftBlock:
        assert request.sampling is not None
        first = torch.stack([flatten(next_probs[(int(a),)]) for a in request.anchor_ids])
        ids = [inverse_cdf(first, request.sampling.uniforms[:, 0])]
        pairs = zip(request.anchor_ids.tolist(), ids[0].tolist(), strict=True)
        second = torch.stack([flatten(next_probs[pair]) for pair in pairs])
        ids.append(inverse_cdf(second, request.sampling.uniforms[:, 1]))
        return DraftBlock(torch.stack(ids, 1), torch.stack([first, second], 1), None)

    with patch.object(DSparkProposer, "propose", propose):
        yield


def _p_value(
    built: Built,
    expected: Tensor,
    *,
    num_tokens: int = 3,
    num_samples: int = NUM_SAMPLES,
    is_seeded: bool = True,
) -> float:
    counts = torch.zeros_like(expected)
    params = [
        EngineSamplingParams(
            max_new_tokens=num_tokens, temperature=1.0, seed=seed if is_seeded else None
        )
        for seed in range(num_samples)
    ]
    requests = [Request(str(i), PROMPT, p) for i, p in enumerate(params)]
    for at in range(0, num_samples, 200):
        for ids, _ in run_all(built, requests[at : at + 200]).values():
            counts[functools.reduce(lambda text, token: text * VOCAB + token, ids)] += 1
    hoped = expected * num_samples
    common = hoped >= 5  # cells too rare for chi-square are taken together
    observed = torch.cat([counts[common], counts[~common].sum()[None]])
    hoped = torch.cat([hoped[common], hoped[~common].sum()[None]])
    keep = hoped > 0
    return float(chisquare(observed[keep].numpy(), (hoped[keep]).numpy()).pvalue)


@pytest.mark.slow
def test_sampling_with_a_bad_draft_gives_the_targets_distribution(
    target: LoadedTarget, next_probs: dict[tuple[int, ...], Tensor], tmp_path: Path
) -> None:
    built = eight_token_engine(target, tmp_path)
    assert _p_value(built, _expected(next_probs)) > 0.001
    accepted = built.engine.snapshot()
    assert 0 < accepted.num_accepted_tokens < 0.7 * accepted.num_draft_tokens


@pytest.mark.slow
def test_sampling_with_a_good_draft_gives_the_targets_distribution(
    target: LoadedTarget, next_probs: dict[tuple[int, ...], Tensor], tmp_path: Path
) -> None:
    built = eight_token_engine(target, tmp_path)
    with well_informed_drafts(next_probs):
        assert _p_value(built, _expected(next_probs)) > 0.001
    accepted = built.engine.snapshot()
    assert accepted.num_accepted_tokens > 0.8 * accepted.num_draft_tokens


@pytest.mark.slow
def test_sampling_with_a_gemma4_pair_gives_the_targets_distribution(tmp_path: Path) -> None:
    target = gemma4_of_eight_tokens()
    expected = _expected(_next_probs(target))
    folder = write_tiny_gemma4_draft(
        tmp_path, block_size=BLOCK, vocab_size=VOCAB, mask_token_id=VOCAB - 1
    )
    built = tiny_engine(target=target, draft_folder=folder, max_running_requests=64)
    assert _p_value(built, expected) > 0.001
    counts = built.engine.snapshot()
    assert 0 < counts.num_accepted_tokens < counts.num_draft_tokens


@pytest.mark.slow
def test_a_biased_verifier_fails_the_same_test(
    target: LoadedTarget,
    next_probs: dict[tuple[int, ...], Tensor],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def too_kind(*args: Tensor, **kwargs: Tensor) -> Verdict:
        kwargs["accept_uniforms"] = kwargs["accept_uniforms"] * 0.8
        return verify_sampled(*args, **kwargs)

    monkeypatch.setattr(verifier, "verify_sampled", too_kind)
    assert _p_value(eight_token_engine(target, tmp_path), _expected(next_probs)) < 0.001


# A block of two is planned where three tokens remain: after the first of four.
CUT: dict[str, int] = {"num_tokens": 4, "num_samples": 20_000}


@contextmanager
def recorded_cuts(kind: type[ConfidenceThreshold | ConfidenceSchedule]) -> Iterator[list[int]]:
    """Record how many draft tokens are left of each whole block."""
    cuts: list[int] = []
    cut = kind.cut

    def recorded(self: Any, plan: StepPlan, block: DraftBlock | None) -> StepPlan:
        kept = cut(self, plan, block)
        planned = zip(plan.drafting, kept.drafting, strict=True)
        cuts.extend(k.num_drafts for p, k in planned if p.num_drafts == BLOCK)
        return kept

    with patch.object(kind, "cut", recorded):
        yield cuts


@pytest.mark.slow
def test_a_confidence_threshold_leaves_the_targets_distribution(
    target: LoadedTarget, next_probs: dict[tuple[int, ...], Tensor], tmp_path: Path
) -> None:
    built = eight_token_engine(target, tmp_path, confidence_threshold=0.25)
    with recorded_cuts(ConfidenceThreshold) as cuts:
        assert _p_value(built, _expected(next_probs, 4), **CUT) > 0.001
    assert min(cuts.count(1), cuts.count(2)) > 0.1 * len(cuts)  # a real choice


@pytest.mark.slow
def test_a_budget_that_looks_at_the_token_itself_fails_the_same_test(
    target: LoadedTarget, next_probs: dict[tuple[int, ...], Tensor], tmp_path: Path
) -> None:
    """Say, one that sends a second token to the target only where it promises to stand."""

    def peeking(self: ConfidenceThreshold, plan: StepPlan, block: DraftBlock | None) -> StepPlan:
        if block is None:
            return plan
        promising = iter((block.draft_ids[:, 1] % 2 == 0).tolist())
        scheduled_seqs = (
            replace(scheduled, num_drafts=min(scheduled.num_drafts, 2 if next(promising) else 1))
            if scheduled.num_drafts > 0
            else scheduled
            for scheduled in plan.scheduled_seqs
        )
        return StepPlan(tuple(scheduled_seqs))

    built = eight_token_engine(target, tmp_path, confidence_threshold=0.25)
    with patch.object(ConfidenceThreshold, "cut", peeking):
        assert _p_value(built, _expected(next_probs, 4), **CUT) < 0.001


# A row more costs about a third of what a sequence's anchor brings.
UNEVEN = StepCosts(
    passes=Curve((1, 64, 192), (0.010, 0.012, 0.020)), drafts=Curve.through({1: 0.001})
)


@contextmanager
def confidences_by_the_first_token() -> Iterator[None]:
    """As in Appendix A: after some tokens the second one is likely, after others not."""
    propose = DSparkProposer.propose

    def replaced(self: DSparkProposer, request: BlockRequest) -> DraftBlock:
        block = propose(self, request)
        second = torch.where(block.draft_ids[:, 0] % 2 == 0, 2.2, -9.0)
        logits = torch.stack([torch.full_like(second, 1.4), second], dim=1)
        return replace(block, confidence_logits=logits)

    with patch.object(DSparkProposer, "propose", replaced):
        yield


def scheduled_p_value(
    target: LoadedTarget, next_probs: dict[tuple[int, ...], Tensor], folder: Path
) -> float:
    """Sample with drafts of several texts at once, whose confidences give out the rows."""
    built = eight_token_engine(target, folder, costs=UNEVEN, confidence_schedule="on")
    seeds = itertools.count()  # those that the engine gives itself, the same in every run
    with (
        patch.object(secrets, "randbits", lambda bits: next(seeds)),
        confidences_by_the_first_token(),
    ):
        return _p_value(built, _expected(next_probs, 4), **CUT, is_seeded=False)


@pytest.mark.slow
def test_scheduled_confidences_leave_the_targets_distribution(
    target: LoadedTarget, next_probs: dict[tuple[int, ...], Tensor], tmp_path: Path
) -> None:
    with recorded_cuts(ConfidenceSchedule) as cuts:
        assert scheduled_p_value(target, next_probs, tmp_path) > 0.001
    assert min(cuts.count(1), cuts.count(2)) > 0.02 * len(cuts)  # a real choice


@pytest.mark.slow
def test_a_schedule_that_searches_all_lengths_by_the_blocks_own_confidences_fails_the_same_test(
    target: LoadedTarget, next_probs: dict[tuple[int, ...], Tensor], tmp_path: Path
) -> None:
    def searching(self: ConfidenceSchedule, plan: StepPlan, block: DraftBlock | None) -> StepPlan:
        if block is None:
            return plan
        assert block.confidence_logits is not None
        pays = block.confidence_logits[:, 1] > 0
        lengths = dict(zip(plan.drafting, torch.where(pays, BLOCK, 0).tolist(), strict=True))
        return StepPlan(
            tuple(
                s if s.num_budgeted is None else s.cut(lengths[s], "confidence")
                for s in plan.scheduled_seqs
            )
        )

    with patch.object(ConfidenceSchedule, "cut", searching):
        assert scheduled_p_value(target, next_probs, tmp_path) < 0.001


@contextmanager
def drafts_by_what_stood() -> Iterator[list[int]]:
    """Vary the number of drafts with earlier acceptances; yield the chosen numbers."""
    chosen: list[int] = []
    num_plain = 0

    def decide(caps: Sequence[int]) -> list[int]:
        nonlocal num_plain
        most = (BLOCK, 0, 1)[(num_plain + sum(a for _, a in script.rounds)) % 3]
        num_plain += most == 0  # a step without rounds would be followed by the same for ever
        numbers = [min(cap, most) for cap in caps]
        chosen.extend(number for number, cap in zip(numbers, caps, strict=True) if cap)
        return numbers

    with scripted_drafts(decide, block_size=BLOCK) as script:
        yield chosen


@pytest.mark.slow
@pytest.mark.parametrize("is_good", [False, True], ids=["bad draft", "good draft"])
def test_numbers_of_drafts_that_follow_earlier_rounds_leave_the_targets_distribution(
    is_good: bool,
    target: LoadedTarget,
    next_probs: dict[tuple[int, ...], Tensor],
    tmp_path: Path,
) -> None:
    costs = StepCosts(passes=Curve.through({1: 1.0}), drafts=Curve.through({1: 1.0}))
    built = eight_token_engine(target, tmp_path, costs=costs)
    seeds = itertools.count()  # those that the engine gives itself, the same in every run
    with (
        patch.object(secrets, "randbits", lambda bits: next(seeds)),
        well_informed_drafts(next_probs) if is_good else nullcontext(),
        drafts_by_what_stood() as chosen,
    ):
        assert _p_value(built, _expected(next_probs, 4), **CUT, is_seeded=False) > 0.001
    assert min(chosen.count(number) for number in range(BLOCK + 1)) > 0.05 * len(chosen)


@contextmanager
def lookups_of(table: dict[tuple[int, ...], Tensor] | None) -> Iterator[None]:
    """Look up the likeliest next tokens by `table`; without one, always the same tokens."""

    def likeliest(prefix: tuple[int, ...]) -> int:
        return VOCAB - 1 if table is None else int(table[prefix].argmax())

    def continuation(self: LookupProposer, seq: SequenceState, count: int) -> tuple[int, ...]:
        text = tuple(seq.token_ids[len(PROMPT) :])
        for _ in range(count):
            text += (likeliest(text),)
        return text[len(text) - count :]

    with (
        patch.object(LookupProposer, "match_len", lambda self, seq: 4),
        patch.object(LookupProposer, "continuation", continuation),
    ):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("is_good", [False, True], ids=["bad lookup", "good lookup"])
@pytest.mark.parametrize("is_seeded", [True, False])
def test_lookups_leave_the_targets_distribution(
    is_good: bool,
    is_seeded: bool,
    target: LoadedTarget,
    next_probs: dict[tuple[int, ...], Tensor],
    tmp_path: Path,
) -> None:
    built = eight_token_engine(target, tmp_path, lookup="on")
    seeds = itertools.count()
    with (
        patch.object(secrets, "randbits", lambda bits: next(seeds)),
        lookups_of(next_probs if is_good else None),
    ):
        assert _p_value(built, _expected(next_probs, 4), **CUT, is_seeded=is_seeded) > 0.001
    seen = built.engine.snapshot().sources["lookup"]
    assert 0 < seen.num_accepted < seen.num_draft_tokens


@pytest.mark.slow
def test_a_lookup_whose_rejection_keeps_its_token_fails_the_same_test(
    target: LoadedTarget, next_probs: dict[tuple[int, ...], Tensor], tmp_path: Path
) -> None:
    """After a rejection the bonus token must not be the rejected one."""

    def keeps(draft_ids: Tensor, p: TokenProbs, num_drafts: Tensor, **uniforms: Tensor) -> Verdict:
        verdict = verify_point_mass(draft_ids, p, num_drafts, **uniforms)
        rows = torch.arange(len(draft_ids))
        bonus = uniforms["bonus_uniforms"][rows, verdict.num_accepted]
        drawn = inverse_cdf(p.probs[rows, verdict.num_accepted], bonus)
        return Verdict(verdict.num_accepted, drawn)

    built = eight_token_engine(target, tmp_path, lookup="on")
    with patch.object(verifier, "verify_point_mass", keeps), lookups_of(next_probs):
        assert _p_value(built, _expected(next_probs, 4), **CUT) < 0.001
