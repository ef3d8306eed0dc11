"""Verifies a step's drafts against the target's logits: one verdict for the whole step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draft import DraftBlock
from engine.runner.batch import ScheduleBatch
from engine.runner.target_model import GreedyVerdict, TargetOutput
from engine.runner.transfer import FloatArray, download
from engine.sampling.draw_groups import DrawGroup, draw_groups
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
from engine.sampling.target_distribution import target_probs
from engine.sampling.uniforms import UniformPlan
from engine.scheduler.plan import RoundResult, StepPlan


@dataclass(frozen=True, slots=True)
class StepOptions:
    """The options of a step's requests that go beyond plain tokens.

    They are needed only once the logits exist, so they are built while a device computes.
    """

    processors: LogitsProcessors
    logprobs: LogprobPlan | None

    @property
    def num_processed_rows(self) -> int:
        return self.processors.num_rows

    @property
    def num_logprob_rows(self) -> int:
        return self.logprobs.num_rows if self.logprobs is not None else 0

    @classmethod
    def of(cls, plan: StepPlan, *, vocab_size: int, device: torch.device) -> Self:
        return cls(
            plan_logits_processors(plan.sampling, vocab_size=vocab_size, device=device),
            LogprobPlan.of(plan, device=device),
        )


class VerdictObserver(Protocol):
    """Uses a step's verdict while it is on the device alone."""

    def launch(self, plan: StepPlan, verdict: Verdict) -> None:
        """Use the verdict; rows are those of plan.sampling. Called once, before the host waits."""
        ...

    def discard(self, rows: Sequence[int]) -> None:
        """Drop the results of rows whose verdict was not exact, and has changed."""
        ...


def verify_step(
    plan: StepPlan,
    batch: ScheduleBatch,
    block: DraftBlock | None,
    output: TargetOutput,
    draws: UniformPlan | None,
    options: StepOptions,
    meanwhile: Callable[[], None] = lambda: None,
    observer: VerdictObserver | None = None,
) -> list[RoundResult]:
    """Verify every sampling sequence. The host waits here for the device, once per step; with a
    token mask or a confidence threshold, which need the draft, it has waited before. It waits again
    where a distribution needs more of the likeliest tokens than it had, which is rare.

    Both rules use the processed logits, so p is what the request asked for. q is the distribution
    that the draft was sampled from; of the options it follows the temperature and the mask only.
    A lookup is no sample: its q is 1 at the token that it proposes.

    meanwhile is called once, just before the host waits: all work of the device is queued by then,
    so other threads may have the interpreter. observer may queue more work before that.
    """
    logprobs = options.logprobs
    if not plan.sampling and logprobs is None:
        meanwhile()
        return []
    if options.processors.waits:
        meanwhile()
        meanwhile = _do_nothing
    captured = None if options.processors.processors else output.verdict
    if captured is not None and logprobs is None and draws is None:
        return _all_greedy(plan, captured, meanwhile, observer)
    logits = output.logits
    windows = logits[: sum(scheduled.num_logit_rows for scheduled in plan.sampling)]
    raw = logprobs.keep(logits) if logprobs is not None else None
    scores = options.processors.scores(windows, batch.draft_ids)
    judged = _Judged.greedily(scores, batch, captured)
    groups = _groups(plan, batch, draws, vocab_size=scores.shape[1])
    if observer is not None and any(g.may_be_inexact(scores.shape[1]) for g in groups):
        block = keep_probs(block) if block is not None else None
    is_first = True
    while True:
        for group in groups:
            assert draws is not None, "sequences draw at random without numbers"
            judged.draw(group, draws, block, scores, batch)
        output_ids = judged.output_ids(batch)
        outputs = [judged.verdict.num_accepted, output_ids, judged.is_exact]
        if logprobs is not None and raw is not None:
            outputs += [logprobs.of_windows(raw, output_ids), raw.prompts]
        if observer is not None and is_first:
            observer.launch(plan, judged.verdict)
        is_first = False
        meanwhile()
        meanwhile = _do_nothing
        num_accepted, ids, is_exact, *of_logprobs = download(outputs)
        inexact = np.flatnonzero(is_exact == 0).tolist()
        if observer is not None and inexact:
            observer.discard(inexact)
        groups = [more for g in groups for more in g.again(inexact, vocab_size=scores.shape[1])]
        if not groups:
            break
    new_ids = _new_ids(num_accepted, ids)
    if logprobs is None:
        return [RoundResult(s, ids) for s, ids in zip(plan.sampling, new_ids, strict=True)]
    return _with_logprobs(plan, new_ids, logprobs, *of_logprobs)


def _all_greedy(
    plan: StepPlan,
    verdict: GreedyVerdict,
    meanwhile: Callable[[], None],
    observer: VerdictObserver | None,
) -> list[RoundResult]:
    """Read the verdict that the pass has taken."""
    if observer is not None:
        observer.launch(plan, Verdict(verdict.num_accepted, verdict.bonus_ids))
    meanwhile()
    new_ids = _new_ids(*download([verdict.num_accepted, verdict.output_ids]))
    return [RoundResult(s, ids) for s, ids in zip(plan.sampling, new_ids, strict=True)]


def keep_probs(block: DraftBlock) -> DraftBlock:
    """Copy a block's distributions, which the next draft pass overwrites."""
    if block.draft_probs is None:
        return block
    return replace(block, draft_probs=block.draft_probs.clone())


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


def _groups(
    plan: StepPlan, batch: ScheduleBatch, draws: UniformPlan | None, *, vocab_size: int
) -> list[DrawGroup]:
    if draws is None:
        return []
    return draw_groups(
        plan,
        draws,
        block_width=batch.draft_ids.shape[1],
        vocab_size=vocab_size,
        device=batch.draft_ids.device,
    )


@dataclass(frozen=True, slots=True)
class _Judged:
    """The verdict of a step's sequences, and whether each one's distributions were exact."""

    verdict: Verdict
    is_exact: Bool[Tensor, " Bs"]

    @classmethod
    def greedily(
        cls, scores: Float[Tensor, "R V"], batch: ScheduleBatch, captured: GreedyVerdict | None
    ) -> Self:
        """Judge every sequence by the argmax, unless the pass has; those that draw are overwritten.

        The pass's verdict is copied: it is valid until the next pass.
        """
        if captured is not None:
            verdict = Verdict(captured.num_accepted.clone(), captured.bonus_ids)
        else:
            verdict = verify_greedy(
                batch.draft_ids, most_likely(scores)[batch.verify_rows], batch.num_drafts
            )
        return cls(verdict, torch.ones_like(verdict.num_accepted, dtype=torch.bool))

    def output_ids(self, batch: ScheduleBatch) -> Int[Tensor, "Bs K+1"]:
        """Return each sequence's drafts, with the bonus token after the accepted ones."""
        bonus = self.verdict.bonus_ids[:, None]
        ids = torch.cat([batch.draft_ids, bonus], dim=1)
        return ids.scatter_(1, self.verdict.num_accepted[:, None], bonus)

    def draw(
        self,
        group: DrawGroup,
        draws: UniformPlan,
        block: DraftBlock | None,
        scores: Float[Tensor, "R V"],
        batch: ScheduleBatch,
    ) -> None:
        """Overwrite the verdict of a group of sequences that draw.

        Without drafts, and for those of a lookup, whose probability is 1, there is no q.
        """
        rows, width, uniforms = group.rows, group.width, draws.uniforms[group.drawing]
        if group.has_draft:
            assert block is not None, "sequences were drafted without a block"
            assert block.draft_probs is not None, "sequences draw without a distribution"
            width = min(width, block.draft_probs.shape[1])
        draft_ids, num_drafts = batch.draft_ids[rows, :width], batch.num_drafts[rows]
        p, is_exact = target_probs(
            scores[batch.verify_rows[rows, : width + 1]], group.params, size=group.size or 0
        )
        accept_uniforms = uniforms[:, :width, Purpose.ACCEPT]
        bonus_uniforms = uniforms[:, : width + 1, Purpose.BONUS]
        if group.has_draft and block is not None and block.draft_probs is not None:
            part = verify_sampled(
                draft_ids,
                block.draft_probs,
                p,
                num_drafts,
                accept_uniforms=accept_uniforms,
                bonus_uniforms=bonus_uniforms,
                draft_rows=group.block_rows,
            )
        else:
            part = verify_point_mass(
                draft_ids,
                p,
                num_drafts,
                accept_uniforms=accept_uniforms,
                bonus_uniforms=bonus_uniforms,
            )
        # Rows after the bonus token decide nothing.
        columns = torch.arange(width + 1, device=rows.device)
        is_exact = is_exact | (columns > part.num_accepted[:, None])
        self.is_exact[rows] = is_exact.all(dim=1)
        self.verdict.num_accepted[rows] = part.num_accepted
        self.verdict.bonus_ids[rows] = part.bonus_ids
