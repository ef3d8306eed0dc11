"""Drafts and logits in, new tokens out: one verdict for a whole step."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from draft import DraftBlock
from engine.batch import ScheduleBatch
from engine.draws import Draws
from engine.plan import RoundResult, SequenceStep
from engine.processing import Processing
from engine.rng import Purpose
from engine.sampling import target_probs
from engine.verify import Verdict, verify_greedy, verify_sampled


def verify_step(
    sampling: Sequence[SequenceStep],
    batch: ScheduleBatch,
    block: DraftBlock | None,
    logits: Float[Tensor, "R V"],
    draws: Draws | None,
    processing: Processing,
) -> list[RoundResult]:
    """Decide every sampling share. The one place of a step where the host waits for the device.

    Both rules judge by the processed logits, so p is what the request asked for; q is what the
    draft was drawn from, which knows nothing of the options but the temperature.
    """
    if not sampling:
        return []
    scores = processing.scores(logits, batch.draft_ids)
    verdict = verify_greedy(
        batch.draft_ids, scores.argmax(dim=-1)[batch.verify_rows], batch.num_drafts
    )
    if draws is not None:
        drawn = _verify_drawn(batch, block, scores, draws)
        verdict.num_accepted[draws.rows] = drawn.num_accepted
        verdict.bonus_ids[draws.rows] = drawn.bonus_ids
    told = torch.cat(
        [verdict.num_accepted[:, None], verdict.bonus_ids[:, None], batch.draft_ids], dim=1
    ).tolist()
    return [
        RoundResult(share, (*drafts[:num_accepted], bonus_id))
        for share, (num_accepted, bonus_id, *drafts) in zip(sampling, told, strict=True)
    ]


def _verify_drawn(
    batch: ScheduleBatch, block: DraftBlock | None, scores: Float[Tensor, "R V"], draws: Draws
) -> Verdict:
    p = target_probs(scores[batch.verify_rows[draws.rows]], draws.params)
    width = batch.draft_ids.shape[1]
    return verify_sampled(
        batch.draft_ids[draws.rows],
        _draft_probs(block, draws, p, width),
        p,
        batch.num_drafts[draws.rows],
        accept_uniforms=draws.uniforms[:, :width, Purpose.ACCEPT],
        bonus_uniforms=draws.uniforms[:, : width + 1, Purpose.BONUS],
    )


def _draft_probs(
    block: DraftBlock | None, draws: Draws, p: Float[Tensor, "R W V"], width: int
) -> Float[Tensor, "R K V"]:
    """q of every drawing share; zeros for those that brought no draft."""
    if block is None or block.draft_probs is None:
        return p.new_zeros(p.shape[0], width, p.shape[2])
    if len(draws.drafting) == p.shape[0]:
        return block.draft_probs[:, :width]
    q = p.new_zeros(p.shape[0], width, p.shape[2])
    q[draws.drafting] = block.draft_probs[:, :width]
    return q
