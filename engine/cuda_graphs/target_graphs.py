"""Captures the target's pass over verify windows, for each capture size."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draft import DSparkProposer
from engine.arrays import IntArray
from engine.cuda_graphs.capture import GraphCapturer, Recording
from engine.cuda_graphs.capture_sizes import CaptureSizes
from engine.cuda_graphs.pinned import PinnedAttention
from engine.cuda_graphs.scratch import ScratchPage
from engine.cuda_graphs.shared_outputs import SharedOutputs
from engine.runner.batch import ScheduleBatch
from engine.runner.target_model import GreedyVerdict, TargetModel, TargetOutput
from engine.runner.transfer import upload
from kv_pool import AttentionBackend, FixedBackend


class GraphedTarget:
    """A TargetModel whose small steps are replayed.

        sequences of 3 and 4 rows, width 5, capture size 3:

        rows     . . a d d  . a d d d  . . . . .
        slots    S S 7 8 9  S 3 4 5 6  S S S S S      S: a slot of the scratch page

    A sequence's rows are at the end of its window, so causal attention sees the same keys as in an
    eager pass. Other rows are padding: their keys and values go to the scratch page, which only
    padding sequences read. A step runs in the narrowest window that holds its sequences. Steps with
    more rows of a sequence, or with a sequence that is shorter than a window, run eagerly.

    A replay also takes the greedy verdict, and writes the draft's context of every row. Rows that
    are rejected lie past the sequence's length, where nothing reads them.
    """

    def __init__(
        self,
        *,
        eager: TargetModel,
        make_target: Callable[[AttentionBackend], TargetModel],
        attention: FixedBackend,
        capturer: GraphCapturer,
        capture_sizes: CaptureSizes,
        widths: tuple[int, ...],
        max_pages: int,
        scratch: ScratchPage,
        draft: DSparkProposer | None,
        device: torch.device,
    ) -> None:
        """Capture every size, with windows of every width.

        draft: its context is written at the end of each pass.

        widths: rows of verify windows, ascending; max_pages: of a sequence and the widest window.
        make_target builds the same target over another attention. Raises NoFixedPlan when a
        layer's attention cannot be captured.
        """
        self._eager = eager
        self._capture_sizes = capture_sizes
        self._widths = widths
        outputs = SharedOutputs()
        self._scratch = scratch
        self._device = device
        self._draft = draft
        self._context_path = draft.context_kv_path if draft is not None else None
        self._windows: dict[tuple[int, int], _Window] = {}
        for rows in reversed(widths):  # the largest first: the others fit into its memory
            for size in reversed(capture_sizes.sizes):
                attending = PinnedAttention(
                    attention, num_sequences=size, query_len=rows, max_pages=max_pages
                )
                attending.update(
                    kv_lens=_kv_lens([], size, rows), page_tables=scratch.pad_tables([], rows, size)
                )
                self._windows[size, rows] = _capture(
                    make_target(attending),
                    attending,
                    capturer,
                    outputs,
                    size,
                    rows,
                    scratch.slot,
                    draft,
                    device,
                )

    @property
    def vocab_size(self) -> int:
        return self._eager.vocab_size

    def forward(self, batch: ScheduleBatch) -> TargetOutput:
        """See TargetModel.forward."""
        size, width = self._capture_sizes.holding(len(batch.query_lens)), self._fitting(batch)
        if size is None or width is None:
            return self._eager.forward(batch)
        window = self._windows[size, width]
        rows = _padded_rows(batch.query_lens, width)
        at, source = upload([rows, _sources(rows, size * width)], self._device)
        window.stage(batch.token_ids, batch.positions, batch.slot_mapping, source)
        window.attention.update(
            kv_lens=_kv_lens(batch.kv_lens, size, width),
            page_tables=self._scratch.pad_tables(batch.page_tables, width, size),
        )
        count = len(batch.query_lens)
        has_verdict = len(batch.num_drafts) == count  # otherwise some sequences do not sample
        if has_verdict:
            window.first[:count] = width - 1 - batch.num_drafts
        window.recording.replay()
        found = window.recording.outputs
        return TargetOutput(
            lambda: found.logits[at[batch.logit_rows]],
            lambda: _rows(found.aux_hidden, at),
            verdict=GreedyVerdict(found.num_accepted[:count], found.output_ids[:count])
            if has_verdict
            else None,
            # A recording keeps the writer's path, whatever mode the writer has now.
            has_written_context=self._draft is not None
            and self._draft.context_kv_path == self._context_path,
        )

    def _fitting(self, batch: ScheduleBatch) -> int | None:
        """Find the narrowest window for every sequence's rows; None if a sequence is shorter."""
        longest, shortest = max(batch.query_lens), min(batch.kv_lens)
        width = next((width for width in self._widths if width >= longest), None)
        return width if width is not None and width <= shortest else None


def _kv_lens(kv_lens: Sequence[int], size: int, width: int) -> list[int]:
    """Pad the lengths; padding sequences are as long as their window."""
    return [*kv_lens, *[width] * (size - len(kv_lens))]


@dataclass(frozen=True, slots=True)
class _WindowOutputs:
    """The outputs of a recording, of every padded row and every padded sequence."""

    logits: Tensor
    aux_hidden: Tensor
    num_accepted: Tensor
    output_ids: Tensor


@dataclass(frozen=True, slots=True)
class _Window:
    """One size and width: the buffers that its recording reads, and the recording."""

    token_ids: Tensor  # [size * width], as are the next two
    positions: Tensor
    slots: Tensor
    first: Tensor  # [size]: the column of each sequence's anchor
    pads: tuple[Tensor, Tensor, Tensor]  # the values of a padded row
    attention: PinnedAttention
    recording: Recording[_WindowOutputs]

    def stage(self, token_ids: Tensor, positions: Tensor, slots: Tensor, source: Tensor) -> None:
        """Copy a step's rows to the buffers; source: see _sources."""
        buffers = (self.token_ids, self.positions, self.slots)
        for buffer, values, pad in zip(
            buffers, (token_ids, positions, slots), self.pads, strict=True
        ):
            torch.index_select(torch.cat([values, pad]), 0, source, out=buffer)


def _capture(
    target: TargetModel,
    attention: PinnedAttention,
    capturer: GraphCapturer,
    outputs: SharedOutputs,
    size: int,
    width: int,
    scratch_slot: int,
    draft: DSparkProposer | None,
    device: torch.device,
) -> _Window:
    num_rows = size * width

    def integers(value: int, count: int = num_rows) -> Tensor:
        return torch.full((count,), value, dtype=torch.long, device=device)

    token_ids, positions, slots = integers(0), integers(0), integers(scratch_slot)
    first = integers(width - 1, size)
    batch = ScheduleBatch(
        token_ids=token_ids,
        positions=positions,
        slot_mapping=slots,
        logit_rows=torch.arange(num_rows, device=device),
        draft_ids=integers(0, 0).view(0, 0),
        num_drafts=integers(0, 0),
        verify_rows=integers(0, 0).view(0, 1),
        query_lens=(width,) * size,
        kv_lens=(width,) * size,
        page_tables=((),) * size,
    )

    def run() -> _WindowOutputs:
        found = target.forward(batch)
        aux_hidden = found.aux_hidden
        if aux_hidden.shape[1]:
            aux_hidden = outputs.store("aux_hidden", aux_hidden)
        if draft is not None:
            draft.write_context(aux_hidden, positions, slots)
        choices = found.logits.argmax(dim=-1).view(size, width)
        num_accepted, output_ids = _judge(token_ids.view(size, width), choices, first)
        return _WindowOutputs(
            logits=outputs.store("logits", found.logits),
            aux_hidden=aux_hidden,
            num_accepted=outputs.store("num_accepted", num_accepted),
            output_ids=outputs.store(f"output_ids of {width}", output_ids),
        )

    with torch.inference_mode():
        recording = capturer.capture(run)
    pads = (integers(0, 1), integers(0, 1), integers(scratch_slot, 1))
    return _Window(token_ids, positions, slots, first, pads, attention, recording)


def _judge(token_ids: Tensor, choices: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """Accept drafts while they are the argmax; return the counts, and ids as in GreedyVerdict.

    token_ids, choices: [B, W], windows and the argmax after each row. first: see _Window.
    """
    width = token_ids.shape[1]
    columns = torch.arange(width, device=token_ids.device)
    is_accepted = (token_ids[:, 1:] == choices[:, :-1]) | (columns[:-1] < first[:, None])
    num_accepted = is_accepted.long().cumprod(dim=1).sum(dim=1) - first
    bonus_ids = choices.gather(1, (first + num_accepted)[:, None])
    drafts = token_ids.gather(1, (first[:, None] + 1 + columns).clamp(max=width - 1))
    return num_accepted, drafts.scatter(1, num_accepted[:, None], bonus_ids)


def _padded_rows(query_lens: Sequence[int], width: int) -> IntArray:
    """Map each packed row to a padded one: rows are at the end of their windows."""
    return np.concatenate(
        [
            np.arange((b + 1) * width - length, (b + 1) * width, dtype=np.int64)
            for b, length in enumerate(query_lens)
        ]
    )


def _sources(rows: IntArray, num_padded: int) -> IntArray:
    """Map each padded row to a packed one, or to len(rows), one past the last, for padding."""
    sources = np.full(num_padded, len(rows), dtype=np.int64)
    sources[rows] = np.arange(len(rows))
    return sources


def _rows(aux_hidden: Tensor, at: Tensor) -> Tensor:
    """Return aux_hidden[at]; without taps it has no width, and may be on the host."""
    if aux_hidden.shape[1] == 0:
        return aux_hidden.new_empty(len(at), 0)
    return aux_hidden[at]
