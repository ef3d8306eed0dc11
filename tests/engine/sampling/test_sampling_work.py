"""Sampling reads and makes no more numbers than the rows concerned need. Counted, not timed."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from draft import DraftBlock
from engine.runner.batch import build_batch
from engine.runner.target_model import TargetOutput
from engine.sampling.logits_processors import plan_logits_processors
from engine.sampling.uniforms import plan_uniforms
from engine.sampling.verify_step import StepOptions, verify_step
from engine.scheduler.plan import ScheduledSequence, StepPlan
from engine.scheduler.sequence import SequenceState
from kv_pool import PageTable
from tests.support.engine.scheduling import request

VOCAB, BLOCK = 2048, 7
CPU = torch.device("cpu")


class _Numbers(TorchDispatchMode):
    """Bytes of the tensors that operations make, and numbers that they reduce by rows."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[int] = []
        self.reduced = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and not func.is_view and not func._schema.is_mutable:
            self.made.append(result.nbytes)
        if "amax" in str(func):
            self.reduced += args[0].numel()
        return result


def _schedule(index: int, num_drafts: int, mask: object = None, **params: Any) -> ScheduledSequence:
    made = replace(request(str(index), prompt_len=3, **params), token_mask=mask)
    seq = SequenceState(
        request=made,
        arrival=index,
        seed=index,
        arrived_at=0.0,
        table=PageTable(4, range(8)),
        token_ids=[1, 2, 3],
        stop_ids=made.params.stop_token_ids,
    )
    return ScheduledSequence(seq=seq, start=2, stop=3, num_drafts=num_drafts, samples=True)


class _Even:
    """A token mask that allows even ids."""

    def fill(self, draft_ids: Sequence[int], words: npt.NDArray[np.uint32]) -> None:
        words[:] = 0x5555_5555


def test_masks_are_unpacked_a_few_rows_at_a_time() -> None:
    sequences = [_schedule(i, BLOCK, _Even() if i != 3 else None) for i in range(8)]
    processors = plan_logits_processors(sequences, vocab_size=VOCAB, device=CPU)
    logits = torch.randn(8 * (BLOCK + 1), VOCAB)
    expected = logits.clone()
    expected[: 3 * (BLOCK + 1), 1::2] = float("-inf")
    expected[4 * (BLOCK + 1) :, 1::2] = float("-inf")
    with _Numbers() as numbers:
        scores = processors.scores(logits, torch.zeros(8, BLOCK).long())
    assert torch.equal(scores, expected)
    assert max(numbers.made) < logits.nbytes / 10


def test_a_shortest_length_reads_only_the_rows_that_it_may_leave_empty() -> None:
    sequences = [_schedule(i, BLOCK) for i in range(8)]
    stops = {"min_new_tokens": 3, "stop_token_ids": frozenset({4, 5})}
    sequences[2:2] = [_schedule(8, BLOCK, **stops), _schedule(9, 0, **stops)]
    processors = plan_logits_processors(sequences, vocab_size=VOCAB, device=CPU)
    logits = torch.zeros(sum(s.num_drafts + 1 for s in sequences), VOCAB)
    first = 2 * (BLOCK + 1)
    short = [first, first + 1, first + 2, first + BLOCK + 1]
    logits[first + 1] = float("-inf")  # of a row in which only a stop is allowed
    logits[first + 1, 5] = 1.0
    expected = logits.clone()
    expected[[first, first + 2, first + BLOCK + 1], 4:6] = float("-inf")
    with _Numbers() as numbers:
        scores = processors.scores(logits, torch.zeros(len(sequences), BLOCK).long())
    assert torch.equal(scores, expected)
    assert numbers.reduced == len(short) * VOCAB


def _verified_bytes(num_drafting: int, num_plain: int) -> int:
    """Bytes made by the verification of sequences that draw, some of which have drafts."""
    params = {"temperature": 1.0}
    drafting = [_schedule(i, BLOCK, **params) for i in range(num_drafting)]
    plain = [_schedule(num_drafting + i, 0, **params) for i in range(num_plain)]
    plan = StepPlan((*drafting, *plain))
    draws = plan_uniforms(plan, block_size=BLOCK, device=CPU)
    block = None
    if drafting:
        probs = torch.full((num_drafting, BLOCK, VOCAB), 1 / VOCAB)
        block = DraftBlock(torch.ones(num_drafting, BLOCK).long(), probs, None)
    batch = build_batch(plan, block, device=CPU)
    options = StepOptions.of(plan, vocab_size=VOCAB, device=CPU)
    logits = torch.zeros(plan.num_rows, VOCAB)
    with _Numbers() as numbers:
        results = verify_step(
            plan, batch, block, TargetOutput(logits, logits[:, :0]), draws, options
        )
    assert len(results) == num_drafting + num_plain
    return sum(numbers.made)


def test_a_sequence_without_drafts_is_verified_by_one_row_whatever_others_draft() -> None:
    alone = _verified_bytes(0, 12)
    mixed = _verified_bytes(2, 12) - _verified_bytes(2, 0)
    assert mixed < 1.1 * alone


def test_verification_copies_no_draft_distribution() -> None:
    """Scores, p and their gathers have K + 1 rows for each sequence; q is read where it lies."""
    per_sequence = (_verified_bytes(4, 0) - _verified_bytes(2, 0)) / 2
    assert per_sequence < 5 * (BLOCK + 1) * VOCAB * torch.float32.itemsize
