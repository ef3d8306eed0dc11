"""The sequences of a step that draw tokens, and the numbers that they draw with."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from draft import BlockSampling
from engine.runner.transfer import place, upload
from engine.sampling.rng import Purpose, RoundKey, round_uniforms
from engine.scheduler.plan import StepPlan


@dataclass(frozen=True, slots=True)
class UniformPlan:
    """The R sampling shares that draw; the others take the argmax.

    The numbers are decided at plan time, on the host, before a draft exists.
    """

    rows: Int[Tensor, " R"]  # which of plan.sampling draw
    drafting: Int[Tensor, " Rd"]  # which of these R bring drafts
    uniforms: Float[Tensor, "R K+1 3"]  # float64, last axis by Purpose
    block: BlockSampling | None  # the drafter's part, for the Rd; None if nothing drafts


def plan_uniforms(plan: StepPlan, *, block_size: int, device: torch.device) -> UniformPlan | None:
    """None when the whole step is greedy."""
    sampling, rows = plan.sampling, plan.drawing
    if not rows:
        return None
    drawing = [sampling[i].seq for i in rows]
    keys = [RoundKey(seq.seed, seq.request.choice, seq.anchor_position) for seq in drawing]
    uniforms = place(round_uniforms(keys, num_positions=block_size + 1), device)
    drafting = [r for r, i in enumerate(rows) if sampling[i].num_drafts > 0]
    block_rows = {id(scheduled): b for b, scheduled in enumerate(plan.drafting)}
    of_block = [block_rows[id(sampling[rows[r]])] for r in drafting]
    rows_t, drafting_rows, of_block_t = upload(
        [np.array(x, dtype=np.int64) for x in (rows, drafting, of_block)], device
    )
    temperatures = np.array(
        [sampling[rows[r]].seq.request.params.temperature for r in drafting], dtype=np.float32
    )
    return UniformPlan(
        rows=rows_t,
        drafting=drafting_rows,
        uniforms=uniforms,
        block=BlockSampling(
            rows=of_block_t,
            temperatures=place(temperatures, device),
            uniforms=uniforms[drafting_rows, :block_size, Purpose.DRAFT],
        )
        if drafting
        else None,
    )
