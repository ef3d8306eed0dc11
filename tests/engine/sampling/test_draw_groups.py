"""Sequences that draw are grouped by proposal and filter, and redrawn where entries ran out."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch

from draft import DraftBlock
from engine.runner.batch import build_batch
from engine.runner.target_model import TargetOutput
from engine.sampling import draw_groups as grouping
from engine.sampling import verify_step as verifier
from engine.sampling.draw_groups import draw_groups
from engine.sampling.uniforms import plan_uniforms
from engine.sampling.verify_step import StepOptions, verify_step
from engine.scheduler.plan import ScheduledSequence, StepPlan
from engine.scheduler.sequence import SequenceState
from kv_pool import PageTable
from tests.support.engine.scheduling import request

VOCAB, BLOCK = 600, 3
CPU, META = torch.device("cpu"), torch.device("meta")
QWEN3 = {"temperature": 0.6, "top_k": 20, "top_p": 0.95}  # of its generation_config


def sequence(index: int, num_drafts: int, **params: Any) -> ScheduledSequence:
    made = request(str(index), prompt_len=3, **params)
    seq = SequenceState(
        request=made,
        arrival=index,
        seed=index,
        arrived_at=0.0,
        table=PageTable(4, range(8)),
        token_ids=[1, 2, 3],
    )
    return ScheduledSequence(seq=seq, start=2, stop=3, num_drafts=num_drafts, samples=True)


def grouped(
    plan: StepPlan, *, vocab_size: int = 151_936, device: torch.device = CPU
) -> list[tuple[list[int], int | None, bool]]:
    draws = plan_uniforms(plan, block_size=BLOCK, device=device)
    assert draws is not None
    groups = draw_groups(plan, draws, block_width=BLOCK, vocab_size=vocab_size, device=device)
    return [([m.row for m in g.members], g.size, g.has_draft) for g in groups]


def test_a_group_has_one_proposal_and_one_kind_of_filter() -> None:
    plan = StepPlan(
        (
            sequence(0, 0, **QWEN3),
            sequence(1, 0),
            sequence(2, 0, temperature=1.0),
            sequence(3, BLOCK, **QWEN3),
            sequence(4, BLOCK, temperature=0.7, top_k=500),
            sequence(5, BLOCK, temperature=1.0),
            sequence(6, BLOCK, **QWEN3),
        )
    )
    assert grouped(plan) == [
        ([0], 128, False),
        ([2], None, False),
        ([3, 6], 128, True),
        ([4], 2048, True),
        ([5], None, True),
    ]


def test_a_group_has_at_most_16_sequences() -> None:
    plan = StepPlan(tuple(sequence(i, 0, **QWEN3) for i in range(35)))
    assert [len(rows) for rows, _, _ in grouped(plan)] == [16, 16, 3]


@pytest.mark.parametrize(
    ("params", "vocab_size", "device", "size"),
    [
        (QWEN3, 151_936, CPU, 128),
        (QWEN3, 151_936, META, 128),  # whatever the device: top_k bounds the search
        ({"top_p": 0.9}, 151_936, CPU, 128),
        ({"top_p": 0.9}, 151_936, META, 2048),
        ({"min_p": 0.1}, 151_936, META, 2048),
        ({"top_k": 5000}, 151_936, META, 151_936),
        ({"top_p": 0.9}, 300, CPU, 300),
        ({}, 151_936, META, None),
    ],
)
def test_the_first_attempt_sorts_the_whole_vocabulary_only_where_top_k_needs_it(
    params: dict[str, Any], vocab_size: int, device: torch.device, size: int | None
) -> None:
    plan = StepPlan((sequence(0, 0, **{"temperature": 1.0, **params}),))
    assert grouped(plan, vocab_size=vocab_size, device=device) == [([0], size, False)]


@pytest.fixture
def steps() -> Iterator[list[int]]:
    """The entries of each distribution that was computed, and downloads as 0."""
    seen: list[int] = []
    probs, download = verifier.target_probs, verifier.download

    def counted(logits: Any, params: Any, *, size: int) -> Any:
        seen.append(size)
        return probs(logits, params, size=size)

    def waited(tensors: Any) -> Any:
        seen.append(0)
        return download(tensors)

    with (
        patch.object(verifier, "target_probs", counted),
        patch.object(verifier, "download", waited),
    ):
        yield seen


def verdicts(logits: torch.Tensor, *sequences: ScheduledSequence) -> list[tuple[int, ...]]:
    plan = StepPlan(sequences)
    draws = plan_uniforms(plan, block_size=BLOCK, device=CPU)
    drafts = torch.arange(len(plan.drafting) * BLOCK).view(-1, BLOCK)
    probs = torch.softmax(torch.zeros(len(plan.drafting), BLOCK, VOCAB), -1)
    block = DraftBlock(drafts, probs, None) if plan.drafting else None
    batch = build_batch(plan, block, device=CPU)
    options = StepOptions.of(plan, vocab_size=VOCAB, device=CPU)
    return [
        r.new_ids
        for r in verify_step(
            plan, batch, block, TargetOutput(logits, logits[:, :0]), draws, options
        )
    ]


def test_a_flat_distribution_is_computed_again_with_more_entries_alone(steps: list[int]) -> None:
    """The host waits twice, and the verdict is that of the whole vocabulary."""
    sequences = [
        sequence(0, 0, temperature=1.0, top_p=0.95),
        sequence(1, 0, **QWEN3),
        sequence(2, 0, temperature=1.0, top_p=0.95),
        sequence(3, BLOCK, temperature=1.0, top_p=0.95),
    ]
    logits = 8 * torch.randn(4 + BLOCK, VOCAB)
    logits[2] = logits[3:] = 0.01 * torch.randn(VOCAB)
    found = verdicts(logits, *sequences)
    assert steps == [128, 128, 0, VOCAB, VOCAB, 0]
    with patch.object(grouping, "_MUCH_LARGER", 10**6):
        steps.clear()
        assert verdicts(logits, *sequences) == found
    assert steps == [VOCAB, VOCAB, 0]


def test_a_step_of_default_requests_waits_once(steps: list[int]) -> None:
    logits = 3 * torch.randn(2 + BLOCK, VOCAB)
    verdicts(logits, sequence(0, 0, **QWEN3), sequence(1, BLOCK, **QWEN3))
    assert steps == [128, 128, 0]


def test_ties_with_the_last_token_of_top_k_that_do_not_fit_are_drawn_from_all_of_them(
    steps: list[int],
) -> None:
    """500 equal tokens: top_k keeps them all, 128 entries do not hold them."""
    logits = torch.zeros(400, VOCAB)
    logits[:, 500:] = -5.0
    sequences = [sequence(i, 0, temperature=1.0, top_k=20) for i in range(400)]
    ids = [found[0] for found in verdicts(logits, *sequences)]
    assert {VOCAB, 128} < set(steps)
    assert max(ids) < 500
    assert len(set(ids)) > 200
