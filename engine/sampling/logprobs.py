"""Log probabilities of what was said: the target's own, from its logits as they came.

No option has touched them, the temperature neither. They are computed for the rows of the
requests that ask, before the processors write over the logits, and told once it is known which
token each row said.
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
from engine.sampling.logit_rows import SamplingRows, Window
from engine.scheduler.plan import ScheduledSequence, StepPlan

_PIECE = 64  # rows whose float32 logits exist at the same time


@dataclass(frozen=True, slots=True)
class Kept:
    """What is left of a step's logits as they came."""

    windows: Float[Tensor, "Qs V"]
    prompts: Float64[Tensor, "Qp 1+2*N"]  # told already: their tokens are known


@dataclass(frozen=True, slots=True)
class LogprobPlan:
    """Qs rows of verify windows and Qp rows of prompts whose next token's logprob is asked for.

    In the packed logits the rows of prompts come behind all windows.
    """

    num_top: int
    windows: tuple[Window, ...]
    prompts: tuple[ScheduledSequence, ...]
    window_rows: Int[Tensor, " Qs"]
    sampling: Int[Tensor, " Qs"]  # the rows' windows among the sampling shares
    num_said: Int[Tensor, " Qs"]  # draft tokens before the row
    prompt_rows: Int[Tensor, " Qp"]
    prompt_ids: Int[Tensor, " Qp"]  # the tokens that follow them

    @classmethod
    def of(cls, plan: StepPlan, *, device: torch.device) -> Self | None:
        rows = SamplingRows.of(plan.sampling)
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

    def keep(self, logits: Float[Tensor, "R V"]) -> Kept:
        """What must be taken from the logits before anything writes over them."""
        return Kept(
            windows=logits[self.window_rows].float(),
            prompts=tell(logits, self.prompt_rows, self.prompt_ids, num_top=self.num_top),
        )

    def tell_windows(
        self, kept: Kept, said_ids: Int[Tensor, "Bs K+1"]
    ) -> Float64[Tensor, "Qs 1+2*N"]:
        """Of what each row of a window said.

        Rows behind the bonus token said nothing: whatever stands there is not read.
        """
        rows = torch.arange(len(kept.windows), device=said_ids.device)
        said = said_ids[self.sampling, self.num_said]
        return tell(kept.windows, rows, said, num_top=self.num_top)

    def of_windows(
        self, told: FloatArray, new_ids: Sequence[tuple[int, ...]]
    ) -> dict[int, tuple[TokenLogprob, ...]]:
        """By id() of the share, an entry for each token that it says.

        new_ids are those of all sampling shares.
        """
        found, first = {}, 0
        for window in self.windows:
            ids = new_ids[window.index]
            rows = told[first : first + len(ids)]
            found[id(window.scheduled)] = _entries(rows, ids, _num_top(window.scheduled))
            first += window.num_rows
        return found

    def of_prompts(self, told: FloatArray) -> dict[int, tuple[TokenLogprob, ...]]:
        """By id() of the share, an entry for each of its logprob_rows."""
        found, first = {}, 0
        for scheduled in self.prompts:
            ids = _following(scheduled)
            rows = told[first : first + len(ids)]
            found[id(scheduled)] = _entries(rows, ids, _num_top(scheduled))
            first += len(ids)
        return found


def tell(
    logits: Float[Tensor, "R V"],
    rows: Int[Tensor, " Q"],
    token_ids: Int[Tensor, " Q"],
    *,
    num_top: int,
) -> Float64[Tensor, "Q 1+2*N"]:
    """For each row the log probability of its token, the N likeliest ids, and theirs.

    N is num_top, or the vocabulary where that is smaller.
    """
    num_top = min(num_top, logits.shape[1])
    told = [logits.new_empty(0, 1 + 2 * num_top, dtype=torch.float64)]
    pieces = zip(torch.split(rows, _PIECE), torch.split(token_ids, _PIECE), strict=True)
    for some, ids in pieces:
        logprobs = torch.log_softmax(logits[some].float(), dim=-1)
        own = logprobs.gather(1, ids[:, None])
        top = logprobs.topk(num_top, dim=-1)
        told.append(torch.cat([own.double(), top.indices.double(), top.values.double()], dim=1))
    return torch.cat(told)


def _entries(told: FloatArray, token_ids: Sequence[int], num_top: int) -> tuple[TokenLogprob, ...]:
    width = (told.shape[1] - 1) // 2
    own = told[:, 0].tolist()
    ids = told[:, 1 : 1 + num_top].astype(np.int64).tolist()
    values = told[:, 1 + width :][:, :num_top].tolist()
    return tuple(
        TokenLogprob(token_id, logprob, tuple(zip(top_ids, top, strict=True)))
        for token_id, logprob, top_ids, top in zip(token_ids, own, ids, values, strict=True)
    )


def _num_top(scheduled: ScheduledSequence) -> int:
    return scheduled.seq.request.params.num_logprobs or 0


def _following(scheduled: ScheduledSequence) -> list[int]:
    """The prompt tokens behind a share's logprob_rows."""
    rows = scheduled.logprob_rows
    return scheduled.seq.token_ids[rows.start + 1 : rows.stop + 1]


def _joined(arrays: Sequence[IntArray]) -> IntArray:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int64)
