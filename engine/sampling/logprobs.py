"""Computes log probabilities of output and prompt tokens from the target's unprocessed logits.

No option changes them, nor does the temperature. The rows of the requests with logprobs are copied
before the processors overwrite the logits; entries are made once each row's token is known.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from engine.api import TokenLogprob
from engine.arrays import IntArray
from engine.runner.transfer import FloatArray, upload
from engine.sampling.logit_rows import LogitRows, Window
from engine.scheduler.plan import ScheduledSequence, StepPlan

_PIECE = 64  # rows whose float32 logits exist at the same time


@dataclass(frozen=True, slots=True)
class RawLogits:
    """What logprobs need of a step's logits before they are processed."""

    windows: Float[Tensor, "Qs V"]
    prompts: Float64[Tensor, "Qp 2+2*N+W"]  # logprobs already: their tokens are known


@dataclass(frozen=True, slots=True)
class LogprobPlan:
    """Qs rows of verify windows and Qp rows of prompts whose next token's logprob is requested.

    In the packed logits the rows of prompts follow all windows. W is the largest number of
    logprob_token_ids of a request; other requests have token 0 in their place.
    """

    num_top: int
    windows: tuple[Window, ...]
    prompts: tuple[ScheduledSequence, ...]
    window_rows: Int[Tensor, " Qs"]
    sampling: Int[Tensor, " Qs"]  # the rows' windows among the sampling sequences
    num_drafts: Int[Tensor, " Qs"]  # draft tokens before the row
    prompt_rows: Int[Tensor, " Qp"]
    prompt_ids: Int[Tensor, " Qp"]  # the tokens that follow them
    window_wanted: Int[Tensor, "Qs W"]
    prompt_wanted: Int[Tensor, "Qp W"]

    @classmethod
    def of(cls, plan: StepPlan, *, device: torch.device) -> Self | None:
        rows = LogitRows.of(plan.sampling)
        windows = rows.where(lambda request: request.params.num_logprobs is not None)
        prompts = [scheduled for scheduled in plan.scheduled_seqs if scheduled.logprob_rows]
        if not windows and not prompts:
            return None
        prompt_ids = _joined([np.array(_following(scheduled)) for scheduled in prompts])
        scheduled_seqs = [window.scheduled for window in windows] + prompts
        width = max(len(_wanted_ids(scheduled)) for scheduled in scheduled_seqs)
        return cls(
            max(_num_top(scheduled) for scheduled in scheduled_seqs),
            tuple(windows),
            tuple(prompts),
            *upload(
                [
                    _joined([w.rows for w in windows]),
                    _joined([np.full(w.num_rows, w.index) for w in windows]),
                    _joined([np.arange(w.num_rows) for w in windows]),
                    rows.num_rows + np.arange(len(prompt_ids)),
                    prompt_ids,
                    _wanted([(w.scheduled, w.num_rows) for w in windows], width),
                    _wanted([(p, len(p.logprob_rows)) for p in prompts], width),
                ],
                device,
            ),
        )

    @property
    def num_rows(self) -> int:
        return len(self.window_rows) + len(self.prompt_rows)

    def keep(self, logits: Float[Tensor, "R V"]) -> RawLogits:
        """Copy what must be taken from the logits before they are overwritten."""
        return RawLogits(
            windows=logits[self.window_rows].float(),
            prompts=logprobs_of(
                logits,
                self.prompt_rows,
                self.prompt_ids,
                num_top=self.num_top,
                wanted=self.prompt_wanted,
            ),
        )

    def of_windows(
        self, raw: RawLogits, output_ids: Int[Tensor, "Bs K+1"]
    ) -> Float64[Tensor, "Qs 2+2*N+W"]:
        """Compute the logprobs of each window row's output token.

        Rows after the bonus token have none: their numbers are not read.
        """
        rows = torch.arange(len(raw.windows), device=output_ids.device)
        ids = output_ids[self.sampling, self.num_drafts]
        return logprobs_of(raw.windows, rows, ids, num_top=self.num_top, wanted=self.window_wanted)

    def window_entries(
        self, logprobs: FloatArray, new_ids: Sequence[tuple[int, ...]]
    ) -> dict[int, tuple[TokenLogprob, ...]]:
        """Make an entry for each new token, by id() of the scheduled sequence.

        new_ids are those of all sampling sequences.
        """
        found, first = {}, 0
        for window in self.windows:
            ids = new_ids[window.index]
            rows = logprobs[first : first + len(ids)]
            found[id(window.scheduled)] = self._entries(window.scheduled, rows, ids)
            first += window.num_rows
        return found

    def prompt_entries(self, logprobs: FloatArray) -> dict[int, tuple[TokenLogprob, ...]]:
        """Make an entry for each of the logprob_rows, by id() of the scheduled sequence."""
        found, first = {}, 0
        for scheduled in self.prompts:
            ids = _following(scheduled)
            rows = logprobs[first : first + len(ids)]
            found[id(scheduled)] = self._entries(scheduled, rows, ids)
            first += len(ids)
        return found

    def _entries(
        self, scheduled: ScheduledSequence, rows: FloatArray, token_ids: Sequence[int]
    ) -> tuple[TokenLogprob, ...]:
        width = self.window_wanted.shape[1]
        own, ranks, wanted, top = np.split(rows, [1, 2, 2 + width], axis=1)
        top_ids, top_values = np.split(top, 2, axis=1)
        num_top, wanted_ids = _num_top(scheduled), _wanted_ids(scheduled)
        return tuple(
            TokenLogprob(
                token_id,
                logprob,
                tuple(zip(ids[:num_top], values[:num_top], strict=True)),
                tuple(zip(wanted_ids, requested, strict=False)),
                rank,
            )
            for token_id, logprob, rank, ids, values, requested in zip(
                token_ids,
                own[:, 0].tolist(),
                ranks[:, 0].astype(np.int64).tolist(),
                top_ids.astype(np.int64).tolist(),
                top_values.tolist(),
                wanted.tolist(),
                strict=True,
            )
        )


def logprobs_of(
    logits: Float[Tensor, "R V"],
    rows: Int[Tensor, " Q"],
    token_ids: Int[Tensor, " Q"],
    *,
    num_top: int,
    wanted: Int[Tensor, "Q W"],
) -> Float64[Tensor, "Q 2+2*N+W"]:
    """Compute log probabilities of each row, as columns.

    They are its token's, its token's rank, those of the wanted ids, the N likeliest ids, and
    theirs. N is num_top, or the size of the vocabulary where that is smaller.
    """
    num_top = min(num_top, logits.shape[1])
    width = 2 + wanted.shape[1] + 2 * num_top
    found = [logits.new_empty(0, width, dtype=torch.float64)]
    pieces = (torch.split(each, _PIECE) for each in (rows, token_ids, wanted))
    for some, ids, others in zip(*pieces, strict=True):
        logprobs = torch.log_softmax(logits[some].float(), dim=-1)
        own = logprobs.gather(1, ids[:, None])
        rank = (logprobs >= own).sum(dim=1, keepdim=True)
        top = logprobs.topk(num_top, dim=-1)
        columns = [own, rank, logprobs.gather(1, others), top.indices, top.values]
        found.append(torch.cat([column.double() for column in columns], dim=1))
    return torch.cat(found)


def _num_top(scheduled: ScheduledSequence) -> int:
    return scheduled.seq.request.params.num_logprobs or 0


def _wanted_ids(scheduled: ScheduledSequence) -> tuple[int, ...]:
    return scheduled.seq.request.params.logprob_token_ids


def _wanted(scheduled_seqs: Sequence[tuple[ScheduledSequence, int]], width: int) -> IntArray:
    """Return the logprob_token_ids of each scheduled sequence's rows; 0 fills short lists."""
    wanted = [
        np.tile(np.array([*ids, *[0] * (width - len(ids))], dtype=np.int64), (num_rows, 1))
        for scheduled, num_rows in scheduled_seqs
        for ids in [_wanted_ids(scheduled)]
    ]
    return np.concatenate(wanted) if wanted else np.zeros((0, width), dtype=np.int64)


def _following(scheduled: ScheduledSequence) -> list[int]:
    """Return the prompt tokens that follow the logprob_rows."""
    rows = scheduled.logprob_rows
    return scheduled.seq.token_ids[rows.start + 1 : rows.stop + 1]


def _joined(arrays: Sequence[IntArray]) -> IntArray:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int64)
