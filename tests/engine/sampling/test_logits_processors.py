"""Options change rows of logits as transformers' processors do on each row's prefix."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from engine import EngineSamplingParams, Request
from engine.sampling.logits_processors import plan_logits_processors
from engine.scheduler.plan import ScheduledSequence
from engine.scheduler.sequence import SequenceState
from engine.scheduler.stop_check import stop_ids
from kv_pool import PageTable
from tests.support.engine.option_cases import OpenAIPenalties

VOCAB = 40
CPU = torch.device("cpu")
EOS = frozenset({0})


def _schedule(
    params: EngineSamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    num_drafts: int,
    token_mask: object = None,
) -> ScheduledSequence:
    seq = SequenceState(
        request=Request("a", tuple(prompt), params, token_mask=token_mask),  # type: ignore[arg-type]
        arrival=0,
        seed=0,
        arrived_at=0.0,
        table=PageTable(4),
        token_ids=[*prompt, *output],
        stop_ids=stop_ids(params, EOS),
    )
    return ScheduledSequence(
        seq=seq,
        start=len(seq.token_ids) - 1,
        stop=len(seq.token_ids),
        num_drafts=num_drafts,
        samples=True,
    )


def _processed(
    scheduled_seqs: list[ScheduledSequence], logits: Tensor, drafts: list[list[int]]
) -> Tensor:
    width = max(len(draft) for draft in drafts)
    padded = torch.tensor([d + [0] * (width - len(d)) for d in drafts]).long()
    processing = plan_logits_processors(scheduled_seqs, vocab_size=VOCAB, device=CPU)
    return processing.scores(logits.clone(), padded.view(len(drafts), width))


def _by_transformers(scheduled: ScheduledSequence, logits: Tensor, draft: list[int]) -> Tensor:
    """Process each row alone, with the draft before it as if it were committed."""
    params, num_prompt = scheduled.seq.request.params, scheduled.seq.num_prompt
    rows = []
    for k in range(len(draft) + 1):
        prefix = [*scheduled.seq.token_ids, *draft[:k]]
        processors = LogitsProcessorList()
        if params.logit_bias:
            bias = [[[token_id], value] for token_id, value in params.logit_bias]
            processors.append(SequenceBiasLogitsProcessor(bias))
        if params.repetition_penalty != 1:
            processors.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
        processors.append(
            OpenAIPenalties(
                num_prompt, presence=params.presence_penalty, frequency=params.frequency_penalty
            )
        )
        if params.min_new_tokens and scheduled.seq.stop_ids:
            processors.append(
                MinNewTokensLengthLogitsProcessor(
                    num_prompt, params.min_new_tokens, sorted(scheduled.seq.stop_ids)
                )
            )
        rows.append(processors(torch.tensor([prefix]), logits[k][None])[0])
    return torch.stack(rows)


TOKENS = st.integers(0, VOCAB - 1)
PARAMS = st.builds(
    EngineSamplingParams,
    max_new_tokens=st.just(50),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    presence_penalty=st.sampled_from([0.0, 1.5, -0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.4, -1.0]),
    min_new_tokens=st.integers(0, 12),
    stop_token_ids=st.frozensets(TOKENS, max_size=3),
    ignore_eos=st.booleans(),
    logit_bias=st.dictionaries(TOKENS, st.floats(-5, 5, width=32), max_size=4).map(
        lambda bias: tuple(bias.items())
    ),
)
WINDOW = st.tuples(
    PARAMS,
    st.lists(TOKENS, min_size=1, max_size=8),
    st.lists(TOKENS, max_size=10),
    st.lists(TOKENS, max_size=5),
)


@settings(max_examples=150, deadline=None)
@given(windows=st.lists(WINDOW, min_size=1, max_size=4), seed=st.integers(0, 1000))
def test_every_row_is_processed_as_if_the_draft_before_it_were_committed(
    windows: list[tuple[EngineSamplingParams, list[int], list[int], list[int]]], seed: int
) -> None:
    scheduled_seqs = [
        _schedule(p, prompt, output, len(draft)) for p, prompt, output, draft in windows
    ]
    drafts = [draft for *_, draft in windows]
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(sum(len(d) + 1 for d in drafts), VOCAB, generator=generator)

    found = _processed(scheduled_seqs, logits, drafts)

    pieces = torch.split(logits, [len(d) + 1 for d in drafts])
    expected = [
        _by_transformers(scheduled, piece, draft)
        for scheduled, piece, draft in zip(scheduled_seqs, pieces, drafts, strict=True)
    ]
    torch.testing.assert_close(found, torch.cat(expected), atol=1e-5, rtol=1e-5)


def test_rows_of_requests_without_options_are_unchanged() -> None:
    plain = _schedule(EngineSamplingParams(), [1, 2], [3], 2)
    biased = _schedule(EngineSamplingParams(logit_bias=((5, 2.0),)), [1, 2], [3], 1)
    logits = torch.randn(5, VOCAB)
    found = _processed([plain, biased], logits, [[4, 5], [6]])
    assert torch.equal(found[:3], logits[:3])
    assert torch.equal(found[3:, 5], logits[3:, 5] + 2)


def test_a_step_without_options_has_no_processor_and_copies_nothing() -> None:
    processing = plan_logits_processors(
        [_schedule(EngineSamplingParams(), [1], [], 2)], vocab_size=9, device=CPU
    )
    logits = torch.randn(3, 9)
    assert processing.processors == ()
    assert processing.scores(logits, torch.zeros(1, 2).long()) is logits


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_processed_in_float32(dtype: torch.dtype) -> None:
    scheduled = _schedule(EngineSamplingParams(frequency_penalty=0.1), [1], [2, 2, 2], 0)
    logits = torch.full((1, VOCAB), 100.0, dtype=dtype)
    found = _processed([scheduled], logits, [[]])
    assert found.dtype == torch.float32
    assert found[0, 2] == pytest.approx(99.7, abs=1e-5)


class _Increasing:
    """Allows ids above the last committed one."""

    def __init__(self, last: int) -> None:
        self.last = last

    def fill(self, draft_ids: Sequence[int], words: npt.NDArray[np.uint32]) -> None:
        assert words.shape == (-(-VOCAB // 32),)
        assert not words.any()
        for token in range([self.last, *draft_ids][-1] + 1, VOCAB):
            words[token // 32] |= np.uint32(1 << token % 32)

    def commit(self, token_id: int) -> bool:
        self.last = token_id
        return token_id == VOCAB - 1


def test_a_token_mask_is_filled_ahead_along_the_draft() -> None:
    plain = _schedule(EngineSamplingParams(), [1], [], 1)
    masked = _schedule(EngineSamplingParams(), [1], [], 3, token_mask=_Increasing(2))
    logits = torch.randn(6, VOCAB)
    found = _processed([plain, masked], logits, [[9], [7, 30, 33]])
    assert torch.equal(found[:2], logits[:2])
    for row, last in zip(found[2:], [2, 7, 30, 33], strict=True):
        assert torch.isinf(row[: last + 1]).all()
        assert torch.isfinite(row[last + 1 :]).all()
