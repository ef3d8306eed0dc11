"""Verifies a step's drafts against the target's logits: one verdict for the whole step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from draft import DraftBlock
from engine.runner.batch import ScheduleBatch
from engine.runner.transfer import FloatArray, download
from engine.sampling.logits_processors import LogitsProcessors, plan_logits_processors
from engine.sampling.logprobs import LogprobPlan
from engine.sampling.rejection import (
    Verdict,
    most_likely,
    verify_greedy,
    verify_point_mass,
    verify_sampled,
)
from engine.sampling.rng import Purpose
from engine.sampling.target_distribution import SamplingBatch, target_probs
from engine.sampling.uniforms import UniformPlan
from engine.scheduler.plan import RoundResult, StepPlan

_PIECE = 16  # sequences whose distributions exist at the same time


@dataclass(frozen=True, slots=True)
class StepOptions:
    """The options of a step's requests that go beyond plain tokens.

    They are needed only once the logits exist, so they are built while a device computes.
    """

    processors: LogitsProcessors
    sampling: SamplingBatch | None  # of the sequences that draw at random; None without any
    logprobs: LogprobPlan | None

    @property
    def num_processed_rows(self) -> int:
        return self.processors.num_rows

    @property
    def num_logprob_rows(self) -> int:
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
    """Verify every sampling sequence. The host waits here for the device, once per step; with a
    token mask or a confidence threshold, which need the draft, it has waited before.

    Both rules use the processed logits, so p is what the request asked for. q is the distribution
    that the draft was sampled from; of the options it follows the temperature and the mask only.
    A lookup is no sample: its q is 1 at the token that it proposes.

    meanwhile is called once, just before the host waits: all work of the device is queued by then,
    so other threads may have the interpreter.
    """
    logprobs = options.logprobs
    if not plan.sampling and logprobs is None:
        meanwhile()
        return []
    if options.processors.waits:
        meanwhile()
        meanwhile = _do_nothing
    windows = logits[: sum(scheduled.num_logit_rows for scheduled in plan.sampling)]
    raw = logprobs.keep(logits) if logprobs is not None else None
    verdict = _verify(batch, block, windows, draws, options)
    output_ids = torch.cat([batch.draft_ids, verdict.bonus_ids[:, None]], dim=1)  # (Bs, K+1)
    output_ids.scatter_(1, verdict.num_accepted[:, None], verdict.bonus_ids[:, None])
    if logprobs is None or raw is None:
        meanwhile()
        new_ids = _new_ids(*download([verdict.num_accepted, output_ids]))
        return [RoundResult(s, ids) for s, ids in zip(plan.sampling, new_ids, strict=True)]
    window_logprobs = logprobs.of_windows(raw, output_ids)
    meanwhile()
    num_accepted, ids, of_windows, of_prompts = download(
        [verdict.num_accepted, output_ids, window_logprobs, raw.prompts]
    )
    return _with_logprobs(plan, _new_ids(num_accepted, ids), logprobs, of_windows, of_prompts)


def _do_nothing() -> None:
    """Replaces a callback that has been called."""


def _new_ids(num_accepted: FloatArray, output_ids: FloatArray) -> list[tuple[int, ...]]:
    """Return each sampling sequence's accepted drafts and bonus token."""
    rows = output_ids.astype(np.int64).tolist()
    counts = num_accepted.astype(np.int64).tolist()
    return [tuple(row[: count + 1]) for row, count in zip(rows, counts, strict=True)]


def _with_logprobs(
    plan: StepPlan,
    new_ids: list[tuple[int, ...]],
    logprob_plan: LogprobPlan,
    of_windows: FloatArray,
    of_prompts: FloatArray,
) -> list[RoundResult]:
    """Build a result for every sequence with new tokens or prompt logprobs."""
    ids = {id(scheduled): new for scheduled, new in zip(plan.sampling, new_ids, strict=True)}
    logprobs = logprob_plan.window_entries(of_windows, new_ids)
    prompt_logprobs = logprob_plan.prompt_entries(of_prompts)
    return [
        RoundResult(
            scheduled,
            ids.get(id(scheduled), ()),
            logprobs=logprobs.get(id(scheduled), ()),
            prompt_logprobs=prompt_logprobs.get(id(scheduled), ()),
        )
        for scheduled in plan.scheduled_seqs
        if scheduled.samples or scheduled.logprob_rows
    ]


def _verify(
    batch: ScheduleBatch,
    block: DraftBlock | None,
    logits: Float[Tensor, "R V"],
    draws: UniformPlan | None,
    options: StepOptions,
) -> Verdict:
    scores = options.processors.scores(logits, batch.draft_ids)
    verdict = verify_greedy(
        batch.draft_ids, most_likely(scores)[batch.verify_rows], batch.num_drafts
    )
    if draws is not None:
        assert options.sampling is not None, "sequences draw at random without parameters"
        for members, width in ((draws.plain, 0), (draws.lookup, draws.lookup_width)):
            for some in torch.split(members, _PIECE) if len(members) else ():
                _verify_drawn(verdict, batch, draws, some, width, None, scores, options.sampling)
        if block is not None and block.draft_probs is not None:
            q = block.draft_probs[:, : batch.draft_ids.shape[1]]
            pieces = zip(torch.split(draws.drafting, _PIECE), torch.split(q, _PIECE), strict=True)
            for some, piece in pieces:
                width = q.shape[1]
                _verify_drawn(verdict, batch, draws, some, width, piece, scores, options.sampling)
    return verdict


def _verify_drawn(
    verdict: Verdict,
    batch: ScheduleBatch,
    draws: UniformPlan,
    members: Int[Tensor, " N"],
    width: int,
    draft_probs: Float[Tensor, "N K V"] | None,
    scores: Float[Tensor, "R V"],
    params: SamplingBatch,
) -> None:
    """Write the verdict of N of the sequences that draw; width: the most draft tokens of any.

    draft_probs is None without drafts, and for a lookup's, whose probability is 1. A few sequences
    at a time: distributions in float32 are large, and sorted ones larger.
    """
    rows, uniforms = draws.rows[members], draws.uniforms[members]
    draft_ids, num_drafts = batch.draft_ids[rows, :width], batch.num_drafts[rows]
    p = target_probs(scores[batch.verify_rows[rows, : width + 1]], params.part(members))
    accept_uniforms = uniforms[:, :width, Purpose.ACCEPT]
    bonus_uniforms = uniforms[:, : width + 1, Purpose.BONUS]
    if draft_probs is None:
        part = verify_point_mass(
            draft_ids, p, num_drafts, accept_uniforms=accept_uniforms, bonus_uniforms=bonus_uniforms
        )
    else:
        part = verify_sampled(
            draft_ids,
            draft_probs,
            p,
            num_drafts,
            accept_uniforms=accept_uniforms,
            bonus_uniforms=bonus_uniforms,
        )
    verdict.num_accepted[rows] = part.num_accepted
    verdict.bonus_ids[rows] = part.bonus_ids
