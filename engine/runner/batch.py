"""Flattens a step plan into tensors: T tokens of B sequences in one row, without padding."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from draft import BlockRequest, BlockSampling, ChainMask, DraftBlock
from engine.arrays import IntArray
from engine.runner.transfer import upload
from engine.scheduler.plan import ScheduledSequence, StepPlan


@dataclass(frozen=True, slots=True)
class ScheduleBatch:
    """The input of one target pass.

    Sequence b has query_lens[b] consecutive rows. Logits are computed for logit_rows only: those
    of the Bs sampling sequences, then those of prompt logprobs. verify_rows makes the packed logits
    of the sampling sequences a rectangle: entry [b, i] is the row that decides the token after
    draft token i - 1, and columns past num_drafts[b] repeat the last one.
    """

    token_ids: Int[Tensor, " T"]
    positions: Int[Tensor, " T"]
    slot_mapping: Int[Tensor, " T"]  # slots of the tokens' keys and values
    logit_rows: Int[Tensor, " R"]
    draft_ids: Int[Tensor, "Bs K"]  # zeros where a sampling sequence has no draft
    num_drafts: Int[Tensor, " Bs"]
    verify_rows: Int[Tensor, "Bs K+1"]
    query_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    page_tables: tuple[Sequence[int], ...]


def build_batch(plan: StepPlan, block: DraftBlock | None, *, device: torch.device) -> ScheduleBatch:
    """Flatten a plan and the draft tokens that it verifies.

    The block's draft ids stay on the device: one indexed store writes them to their rows. Those of
    a lookup are known on the host and are uploaded with the committed tokens.
    """
    scheduled_seqs = plan.scheduled_seqs
    starts = _offsets([scheduled.num_rows for scheduled in scheduled_seqs])
    tokens, positions, slots = _rows(scheduled_seqs)
    logit_rows = _logit_rows(scheduled_seqs, starts)
    width = max((scheduled.num_drafts for scheduled in scheduled_seqs), default=0)
    draft_rows, draft_sources, sampling_rows = _draft_indices(plan, starts, block)
    num_drafts = np.array([s.num_drafts for s in plan.sampling], dtype=np.int64)
    (
        token_ids,
        positions_t,
        slot_mapping,
        logit_rows_t,
        verify_rows,
        num_drafts_t,
        draft_ids,
        draft_rows_t,
        draft_sources_t,
        sampling_rows_t,
    ) = upload(
        [
            tokens,
            positions,
            slots,
            logit_rows,
            _verify_rows(plan.sampling, width),
            num_drafts,
            _lookup_ids(plan.sampling, width),
            draft_rows,
            draft_sources,
            sampling_rows,
        ],
        device,
    )
    if block is not None:
        token_ids[draft_rows_t] = block.draft_ids.flatten()[draft_sources_t]
        block_width = min(width, block.draft_ids.shape[1])
        draft_ids[sampling_rows_t, :block_width] = block.draft_ids[:, :block_width]
    return ScheduleBatch(
        token_ids=token_ids,
        positions=positions_t,
        slot_mapping=slot_mapping,
        logit_rows=logit_rows_t,
        verify_rows=verify_rows,
        num_drafts=num_drafts_t,
        draft_ids=draft_ids,
        query_lens=tuple(scheduled.num_rows for scheduled in scheduled_seqs),
        kv_lens=tuple(scheduled.kv_len for scheduled in scheduled_seqs),
        page_tables=tuple(scheduled.seq.table.pages for scheduled in scheduled_seqs),
    )


def batch_of_rows(
    pieces: Sequence[tuple[Tensor, Sequence[int], int, int]], *, page_size: int
) -> ScheduleBatch:
    """Build a batch without a scheduler: rows start..stop-1 of each (ids, pages, start, stop).

    It has logits of every row, and no drafts.
    """
    device = pieces[0][0].device
    positions = [torch.arange(start, stop, device=device) for *_, start, stop in pieces]
    slots = [
        torch.as_tensor(list(table), device=device)[at // page_size] * page_size + at % page_size
        for at, (_, table, _, _) in zip(positions, pieces, strict=True)
    ]
    num_rows = sum(len(at) for at in positions)
    return ScheduleBatch(
        token_ids=torch.cat([ids[start:stop] for ids, _, start, stop in pieces]),
        positions=torch.cat(positions),
        slot_mapping=torch.cat(slots),
        logit_rows=torch.arange(num_rows, device=device),
        draft_ids=torch.zeros(0, 0, dtype=torch.long, device=device),
        num_drafts=torch.zeros(0, dtype=torch.long, device=device),
        verify_rows=torch.zeros(0, 1, dtype=torch.long, device=device),
        query_lens=tuple(stop - start for *_, start, stop in pieces),
        kv_lens=tuple(stop for *_, stop in pieces),
        page_tables=tuple(table for _, table, _, _ in pieces),
    )


def build_block_request(
    drafting: Sequence[ScheduledSequence],
    sampling: BlockSampling | None,
    *,
    num_slots: int,
    mask: ChainMask | None = None,
    device: torch.device,
) -> BlockRequest:
    """Build the draft's input: an anchor and a block's scratch slots per drafting sequence."""
    anchors = np.array([scheduled.seq.token_ids[-1] for scheduled in drafting], dtype=np.int64)
    positions = np.array([scheduled.start for scheduled in drafting], dtype=np.int64)
    slots = np.stack([s.seq.table.slots(s.start, s.start + num_slots) for s in drafting])
    anchor_ids, anchor_positions, block_slots = upload([anchors, positions, slots], device)
    return BlockRequest(
        anchor_ids=anchor_ids,
        anchor_positions=anchor_positions,
        slots=block_slots,
        page_tables=[scheduled.seq.table.pages for scheduled in drafting],
        context_lens=[scheduled.start for scheduled in drafting],
        sampling=sampling,
        mask=mask,
    )


def committed_rows(committed_counts: Sequence[tuple[ScheduledSequence, int]]) -> IntArray:
    """Find the rows whose tokens are committed now: the first `count` of each sequence."""
    starts = _offsets([scheduled.num_rows for scheduled, _ in committed_counts])
    return _concat(
        np.arange(at, at + count) for at, (_, count) in zip(starts, committed_counts, strict=True)
    )


def _rows(scheduled_seqs: Sequence[ScheduledSequence]) -> tuple[IntArray, IntArray, IntArray]:
    """Collect token ids (0 for the draft model's), positions and slots of every row."""
    tokens = _concat(
        np.array(
            [*s.seq.token_ids[s.start : s.stop], *(s.lookup_ids or [0] * s.num_drafts)],
            dtype=np.int64,
        )
        for s in scheduled_seqs
    )
    positions = _concat(np.arange(s.start, s.start + s.num_rows) for s in scheduled_seqs)
    slots = _concat(s.seq.table.slots(s.start, s.start + s.num_rows) for s in scheduled_seqs)
    return tokens, positions, slots


def _logit_rows(scheduled_seqs: Sequence[ScheduledSequence], starts: list[int]) -> IntArray:
    """Find the rows of every verify window, then those of prompt logprobs."""
    with_start = list(zip(starts, scheduled_seqs, strict=True))
    windows = [
        np.arange(at + scheduled.num_rows - scheduled.num_logit_rows, at + scheduled.num_rows)
        for at, scheduled in with_start
        if scheduled.samples
    ]
    prompts = [
        at - scheduled.start + np.arange(scheduled.logprob_rows.start, scheduled.logprob_rows.stop)
        for at, scheduled in with_start
        if scheduled.logprob_rows
    ]
    return _concat(windows + prompts)


def _draft_indices(
    plan: StepPlan, starts: list[int], block: DraftBlock | None
) -> tuple[IntArray, IntArray, IntArray]:
    """Find draft tokens' rows in the batch, their places in the block, and their sequences.

    Rows and places have an entry for each token of the draft model, sequences one for each of
    its blocks: the index among the sampling sequences.
    """
    if block is None:
        empty = np.zeros(0, dtype=np.int64)
        return empty, empty, empty
    block_size = block.draft_ids.shape[1]
    with_start = [
        (at, s) for at, s in zip(starts, plan.scheduled_seqs, strict=True) if s.is_drafting
    ]
    rows = _concat(np.arange(at + s.num_committed, at + s.num_rows) for at, s in with_start)
    sources = _concat(
        np.arange(b * block_size, b * block_size + s.num_drafts)
        for b, (_, s) in enumerate(with_start)
    )
    sequences = [i for i, scheduled in enumerate(plan.sampling) if scheduled.is_drafting]
    return rows, sources, np.array(sequences, dtype=np.int64)


def _lookup_ids(sampling: Sequence[ScheduledSequence], width: int) -> IntArray:
    """Return the draft ids of lookups, [Bs, width], and zeros elsewhere."""
    ids = np.zeros((len(sampling), width), dtype=np.int64)
    for row, scheduled in zip(ids, sampling, strict=True):
        row[: len(scheduled.lookup_ids)] = scheduled.lookup_ids
    return ids


def _verify_rows(sampling: Sequence[ScheduledSequence], width: int) -> IntArray:
    rows = np.zeros((len(sampling), width + 1), dtype=np.int64)
    starts = _offsets([scheduled.num_logit_rows for scheduled in sampling])
    for b, (at, scheduled) in enumerate(zip(starts, sampling, strict=True)):
        rows[b] = at + np.minimum(np.arange(width + 1), scheduled.num_drafts)
    return rows


def _offsets(lengths: list[int]) -> list[int]:
    return [0, *np.cumsum(lengths[:-1]).tolist()] if lengths else []


def _concat(arrays: Iterable[IntArray]) -> IntArray:
    pieces = list(arrays)
    return np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int64)
