"""Drafts and logits in, new tokens out: one verdict for a whole step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from draft import DraftBlock
from engine.runner.batch import ScheduleBatch
from engine.runner.transfer import FloatArray, download
from engine.sampling.logits_processors import LogitsProcessors, plan_logits_processors
from engine.sampling.logprobs import LogprobPlan
from engine.sampling.rejection import Verdict, most_likely, verify_greedy, verify_sampled
from engine.sampling.rng import Purpose
from engine.sampling.target_distribution import SamplingBatch, target_probs
from engine.sampling.uniforms import UniformPlan
from engine.scheduler.plan import RoundResult, StepPlan

_PIECE = 16  # drawing sequences whose distributions exist at the same time


@dataclass(frozen=True, slots=True)
class StepOptions:
    """What the requests of a step ask for beyond plain tokens.

    Nothing of it is needed before the logits are there, so it is made while a device computes.
    """

    processing: LogitsProcessors
    sampling: SamplingBatch | None  # of the sequences that draw; None when none does
    logprobs: LogprobPlan | None

    @property
    def num_processed_rows(self) -> int:
        return self.processing.num_rows

    @property
    def num_told_rows(self) -> int:
        return self.logprobs.num_rows if self.logprobs is not None else 0

    @classmethod
    def of(cls, plan: StepPlan, *, vocab_size: int, device: torch.device) -> Self:
        sampling = plan.sampling
        drawing = [sampling[place].seq.request.params for place in plan.drawing]
        return cls(
            plan_logits_processors(sampling, vocab_size=vocab_size, device=device),
            SamplingBatch.of(drawing, vocab_size=vocab_size, device=device) if drawing else None,
            LogprobPlan.of(plan, device=device),
        )


def verify_step(
    plan: StepPlan,
    batch: ScheduleBatch,
    block: DraftBlock | None,
    logits: Float[Tensor, "R V"],
    draws: UniformPlan | None,
    options: StepOptions,
    meanwhile: Callable[[], None] = lambda: None,
) -> list[RoundResult]:
    """Decide every sampling share. Here the host waits for the device, once a step; a mask or a
    confidence threshold, which must know the draft, makes it wait before.

    Both rules judge by the processed logits, so p is what the request asked for; q is what the
    draft was drawn from, which knows nothing of the options but the temperature.

    meanwhile is called once, as late as it can be before the host waits: whatever the device is to
    do is on it by then, so that other threads may have the interpreter.
    """
    asked = options.logprobs
    if not plan.sampling and asked is None:
        meanwhile()
        return []
    if options.processing.waits:
        meanwhile()
        meanwhile = _nothing
    windows = logits[: sum(scheduled.num_logit_rows for scheduled in plan.sampling)]
    kept = asked.keep(logits) if asked is not None else None
    verdict = _decide(batch, block, windows, draws, options)
    said_ids = torch.cat([batch.draft_ids, verdict.bonus_ids[:, None]], dim=1)  # (Bs, K+1)
    said_ids.scatter_(1, verdict.num_accepted[:, None], verdict.bonus_ids[:, None])
    if asked is None or kept is None:
        meanwhile()
        new_ids = _new_ids(*download([verdict.num_accepted, said_ids]))
        return [RoundResult(s, ids) for s, ids in zip(plan.sampling, new_ids, strict=True)]
    told = asked.tell_windows(kept, said_ids)
    meanwhile()
    num_accepted, ids, of_windows, of_prompts = download(
        [verdict.num_accepted, said_ids, told, kept.prompts]
    )
    return _told_results(plan, _new_ids(num_accepted, ids), asked, of_windows, of_prompts)


def _nothing() -> None:
    """For what has been done."""


def _new_ids(num_accepted: FloatArray, said_ids: FloatArray) -> list[tuple[int, ...]]:
    """What each sampling share says: its accepted drafts and the bonus token."""
    rows = said_ids.astype(np.int64).tolist()
    counts = num_accepted.astype(np.int64).tolist()
    return [tuple(row[: count + 1]) for row, count in zip(rows, counts, strict=True)]


def _told_results(
    plan: StepPlan,
    new_ids: list[tuple[int, ...]],
    asked: LogprobPlan,
    of_windows: FloatArray,
    of_prompts: FloatArray,
) -> list[RoundResult]:
    """A result for every share that says or tells something."""
    said = {id(scheduled): ids for scheduled, ids in zip(plan.sampling, new_ids, strict=True)}
    logprobs = asked.of_windows(of_windows, new_ids)
    prompt_logprobs = asked.of_prompts(of_prompts)
    return [
        RoundResult(
            scheduled,
            said.get(id(scheduled), ()),
            logprobs=logprobs.get(id(scheduled), ()),
            prompt_logprobs=prompt_logprobs.get(id(scheduled), ()),
        )
        for scheduled in plan.scheduled_seqs
        if scheduled.samples or scheduled.logprob_rows
    ]


def _decide(
    batch: ScheduleBatch,
    block: DraftBlock | None,
    logits: Float[Tensor, "R V"],
    draws: UniformPlan | None,
    options: StepOptions,
) -> Verdict:
    scores = options.processing.scores(logits, batch.draft_ids)
    verdict = verify_greedy(
        batch.draft_ids, most_likely(scores)[batch.verify_rows], batch.num_drafts
    )
    if draws is not None:
        assert options.sampling is not None, "sequences draw, and nobody asked"
        drawn = _verify_drawn(batch, block, scores, draws, options.sampling)
        verdict.num_accepted[draws.rows] = drawn.num_accepted
        verdict.bonus_ids[draws.rows] = drawn.bonus_ids
    return verdict


def _verify_drawn(
    batch: ScheduleBatch,
    block: DraftBlock | None,
    scores: Float[Tensor, "R V"],
    draws: UniformPlan,
    params: SamplingBatch,
) -> Verdict:
    """A few sequences at a time: distributions in float32 are large, and sorted ones larger."""
    count, width = len(draws.rows), batch.draft_ids.shape[1]
    q = _draft_probs(block, draws, count, width, scores)
    pieces = []
    for first in range(0, count, _PIECE):
        some = slice(first, first + _PIECE)
        rows, uniforms = draws.rows[some], draws.uniforms[some]
        pieces.append(
            verify_sampled(
                batch.draft_ids[rows],
                q[some],
                target_probs(scores[batch.verify_rows[rows]], params.part(some)),
                batch.num_drafts[rows],
                accept_uniforms=uniforms[:, :width, Purpose.ACCEPT],
                bonus_uniforms=uniforms[:, : width + 1, Purpose.BONUS],
            )
        )
    return Verdict(
        torch.cat([piece.num_accepted for piece in pieces]),
        torch.cat([piece.bonus_ids for piece in pieces]),
    )


def _draft_probs(
    block: DraftBlock | None, draws: UniformPlan, count: int, width: int, like: Tensor
) -> Float[Tensor, "R K V"]:
    """q of every drawing share; zeros for those that brought no draft."""
    shape = count, width, like.shape[1]
    if block is None or block.draft_probs is None:
        return like.new_zeros((), dtype=torch.float32).expand(shape)
    if len(draws.drafting) == count:
        return block.draft_probs[:, :width]
    q = like.new_zeros(shape, dtype=torch.float32)
    q[draws.drafting] = block.draft_probs[:, :width]
    return q
