"""Plans which sequences of a step sample tokens, and the uniforms that they sample with."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from draft import BlockSampling
from engine.runner.transfer import place, upload
from engine.sampling.rng import Purpose, RoundKey, round_uniforms
from engine.scheduler.plan import ScheduledSequence, StepPlan


@dataclass(frozen=True, slots=True)
class UniformPlan:
    """The R sequences that draw at random; the others take the argmax.

    The host computes the uniforms at plan time, before a draft exists.
    """

    rows: tuple[int, ...]  # indices in plan.sampling
    drafting: tuple[int, ...]  # which of these R have drafts of the draft model
    lookup: tuple[int, ...]  # which of these R have drafts of a lookup
    plain: tuple[int, ...]  # which of these R have none
    lookup_width: int  # the most drafts of any lookup
    uniforms: Float[Tensor, "R K+1 3"]  # float64, last axis by Purpose
    block_size: int
    temperatures: npt.NDArray[np.float32]  # of the R sequences

    def of_block(
        self, plan: StepPlan, drafting: Sequence[ScheduledSequence], *, device: torch.device
    ) -> BlockSampling | None:
        """Return what a draft pass over these sequences of the plan samples with, if any does."""
        places = {id(scheduled): b for b, scheduled in enumerate(drafting)}
        sampling = plan.sampling
        drawing = [r for r in self.drafting if id(sampling[self.rows[r]]) in places]
        if not drawing:
            return None
        rows = [places[id(sampling[self.rows[r]])] for r in drawing]
        drawing_t, rows_t = upload([np.array(x, dtype=np.int64) for x in (drawing, rows)], device)
        return BlockSampling(
            rows=rows_t,
            temperatures=place(self.temperatures[drawing], device),
            uniforms=self.uniforms[drawing_t, : self.block_size, Purpose.DRAFT],
        )


def plan_uniforms(plan: StepPlan, *, block_size: int, device: torch.device) -> UniformPlan | None:
    """Compute the uniforms of a step; None when all of it is greedy."""
    sampling, rows = plan.sampling, plan.drawing
    if not rows:
        return None
    drawing = [sampling[i].seq for i in rows]
    keys = [RoundKey(seq.seed, seq.request.choice, seq.anchor_position) for seq in drawing]
    lookup_width = max((len(sampling[i].lookup_ids) for i in rows), default=0)
    num_positions = max(block_size, lookup_width) + 1
    uniforms = place(round_uniforms(keys, num_positions=num_positions), device)
    drafting, lookup, plain = (
        tuple(r for r, i in enumerate(rows) if sampling[i].source == source)
        for source in ("draft", "lookup", "target")
    )
    temperatures = [seq.request.params.temperature for seq in drawing]
    return UniformPlan(
        rows=rows,
        drafting=drafting,
        lookup=lookup,
        plain=plain,
        lookup_width=lookup_width,
        uniforms=uniforms,
        block_size=block_size,
        temperatures=np.array(temperatures, dtype=np.float32),
    )
