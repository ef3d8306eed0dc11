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
    prompts: Float64[Tensor, "Qp 1+2*N"]  # logprobs already: their tokens are known


@dataclass(frozen=True, slots=True)
class LogprobPlan:
    """Qs rows of verify windows and Qp rows of prompts whose next token's logprob is requested.

    In the packed logits the rows of prompts follow all windows.
    """

    num_top: int
    windows: tuple[Window, ...]
    prompts: tuple[ScheduledSequence, ...]
    window_rows: Int[Tensor, " Qs"]
    sampling: Int[Tensor, " Qs"]  # the rows' windows among the sampling sequences
    num_drafts: Int[Tensor, " Qs"]  # draft tokens before the row
    prompt_rows: Int[Tensor, " Qp"]
    prompt_ids: Int[Tensor, " Qp"]  # the tokens that follow them

    @classmethod
    def of(cls, plan: StepPlan, *, device: torch.device) -> Self | None:
        rows = LogitRows.of(plan.sampling)
        windows = rows.where(lambda request: request.params.num_logprobs is not None)
        prompts = [scheduled for scheduled in plan.scheduled_seqs if scheduled.logprob_rows]
        if not windows and not prompts:
            return None
        prompt_ids = _joined([np.array(_following(scheduled)) for scheduled in prompts])
        scheduled_seqs = [window.scheduled for window in windows] + prompts
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
            prompts=logprobs_of(logits, self.prompt_rows, self.prompt_ids, num_top=self.num_top),
        )

    def of_windows(
        self, raw: RawLogits, output_ids: Int[Tensor, "Bs K+1"]
    ) -> Float64[Tensor, "Qs 1+2*N"]:
        """Compute the logprobs of each window row's output token.

        Rows after the bonus token have none: their numbers are not read.
        """
        rows = torch.arange(len(raw.windows), device=output_ids.device)
        ids = output_ids[self.sampling, self.num_drafts]
        return logprobs_of(raw.windows, rows, ids, num_top=self.num_top)

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
            found[id(window.scheduled)] = _entries(rows, ids, _num_top(window.scheduled))
            first += window.num_rows
        return found

    def prompt_entries(self, logprobs: FloatArray) -> dict[int, tuple[TokenLogprob, ...]]:
        """Make an entry for each of the logprob_rows, by id() of the scheduled sequence."""
        found, first = {}, 0
        for scheduled in self.prompts:
            ids = _following(scheduled)
            rows = logprobs[first : first + len(ids)]
            found[id(scheduled)] = _entries(rows, ids, _num_top(scheduled))
            first += len(ids)
        return found


def logprobs_of(
    logits: Float[Tensor, "R V"],
    rows: Int[Tensor, " Q"],
    token_ids: Int[Tensor, " Q"],
    *,
    num_top: int,
) -> Float64[Tensor, "Q 1+2*N"]:
    """Compute of each row its token's log probability, the N likeliest ids, and theirs.

    N is num_top, or the size of the vocabulary where that is smaller.
    """
    num_top = min(num_top, logits.shape[1])
    found = [logits.new_empty(0, 1 + 2 * num_top, dtype=torch.float64)]
    pieces = zip(torch.split(rows, _PIECE), torch.split(token_ids, _PIECE), strict=True)
    for some, ids in pieces:
        logprobs = torch.log_softmax(logits[some].float(), dim=-1)
        own = logprobs.gather(1, ids[:, None])
        top = logprobs.topk(num_top, dim=-1)
        found.append(torch.cat([own.double(), top.indices.double(), top.values.double()], dim=1))
    return torch.cat(found)


def _entries(rows: FloatArray, token_ids: Sequence[int], num_top: int) -> tuple[TokenLogprob, ...]:
    width = (rows.shape[1] - 1) // 2
    own = rows[:, 0].tolist()
    ids = rows[:, 1 : 1 + num_top].astype(np.int64).tolist()
    values = rows[:, 1 + width :][:, :num_top].tolist()
    return tuple(
        TokenLogprob(token_id, logprob, tuple(zip(top_ids, top, strict=True)))
        for token_id, logprob, top_ids, top in zip(token_ids, own, ids, values, strict=True)
    )


def _num_top(scheduled: ScheduledSequence) -> int:
    return scheduled.seq.request.params.num_logprobs or 0


def _following(scheduled: ScheduledSequence) -> list[int]:
    """Return the prompt tokens that follow the logprob_rows."""
    rows = scheduled.logprob_rows
    return scheduled.seq.token_ids[rows.start + 1 : rows.stop + 1]


def _joined(arrays: Sequence[IntArray]) -> IntArray:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int64)
