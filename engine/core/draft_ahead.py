"""Launches the next step's draft from a verdict that the host has not read yet.

    device   | target n, verdict | draft n+1 | target n+1 ...
    host       plan n+1's pages    reads n, commits, plans n+1

The draft reads its anchors, their positions and slots on the device. The host reserves pages for
every number of accepted tokens. Which blocks the next step verifies remains the plan's decision: it
takes those that exist, and drafts the others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from draft import BlockRequest, BlockSampling, DraftBlock
from engine.cuda_graphs import GraphedProposer
from engine.runner.transfer import place, upload
from engine.sampling.rejection import Verdict
from engine.sampling.rng import Purpose, RoundKey, round_uniforms
from engine.sampling.verify_step import keep_probs
from engine.scheduler.plan import ScheduledSequence, StepPlan
from engine.scheduler.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class _Launched:
    """Blocks for the next step; rows and draws are by id() of the sequence."""

    plan: StepPlan  # of the step before
    block: DraftBlock
    rows: dict[int, int]
    draws: dict[int, int]  # places in block.draft_probs


class DraftAhead:
    """Implements VerdictObserver for one engine; not thread-safe."""

    def __init__(
        self, *, proposer: GraphedProposer, scheduler: Scheduler, device: torch.device
    ) -> None:
        self._proposer = proposer
        self._scheduler = scheduler
        self._device = device
        self._columns = torch.arange(proposer.num_slots, device=device)
        self._launched: _Launched | None = None
        self.has_discarded = False  # in the latest step: its context must be written again
        self.num_launched = 0  # blocks since the start
        self.num_used = 0  # of them

    def launch(self, plan: StepPlan, verdict: Verdict) -> None:
        """See VerdictObserver.launch. The context of all rows of the plan is written."""
        ahead = self._scheduler.reserve_ahead(plan)
        if not ahead or not self._proposer.can_draft_ahead(len(ahead)):
            return
        places = {id(scheduled): row for row, scheduled in enumerate(plan.sampling)}
        rows, starts, slots = upload(
            [
                np.array([places[id(s)] for s in ahead], dtype=np.int64),
                np.array([s.stop for s in ahead], dtype=np.int64),
                _possible_slots(ahead, self._proposer.num_slots),
            ],
            self._device,
        )
        accepted = verdict.num_accepted[rows]
        drawing = [b for b, s in enumerate(ahead) if not s.seq.request.params.is_greedy]
        block = self._proposer.propose(
            BlockRequest(
                anchor_ids=verdict.bonus_ids[rows],
                anchor_positions=starts + accepted,
                slots=slots.gather(1, accepted[:, None] + self._columns),
                page_tables=[s.seq.table.pages for s in ahead],
                context_lens=[s.stop + s.num_drafts for s in ahead],
                least_context_lens=[s.stop for s in ahead],
                sampling=self._sampling(ahead, drawing, accepted) if drawing else None,
            )
        )
        self._launched = _Launched(
            plan,
            block,
            {id(s.seq): row for row, s in enumerate(ahead)},
            {id(ahead[b].seq): at for at, b in enumerate(drawing)},
        )
        self.num_launched += len(ahead)

    def discard(self, rows: Sequence[int]) -> None:
        """See VerdictObserver.discard."""
        self.has_discarded = True
        launched = self._launched
        if launched is not None:
            for row in rows:
                launched.rows.pop(id(launched.plan.sampling[row].seq), None)

    def propose(
        self,
        drafting: Sequence[ScheduledSequence],
        draft: Callable[[Sequence[ScheduledSequence]], DraftBlock],
    ) -> DraftBlock | None:
        """Return the blocks of a step's sequences: those that exist, and others by `draft`.

        Called once when a step begins, and again when it is repeated, which drafts anew. Returns
        None without sequences.
        """
        launched, self._launched, self.has_discarded = self._launched, None, False
        if not drafting:
            return None
        rows = [None if launched is None else launched.rows.get(id(s.seq)) for s in drafting]
        missing = [s for s, row in zip(drafting, rows, strict=True) if row is None]
        if launched is None or len(missing) == len(drafting):
            return draft(drafting)
        self.num_used += len(drafting) - len(missing)
        if rows == list(range(len(launched.rows))) and len(launched.block.draft_ids) == len(rows):
            return launched.block
        if not missing:
            return _join(drafting, launched, None)
        # The other pass overwrites the distributions.
        launched = replace(launched, block=keep_probs(launched.block))
        return _join(drafting, launched, draft(missing))

    def _sampling(
        self, ahead: Sequence[ScheduledSequence], drawing: Sequence[int], accepted: Tensor
    ) -> BlockSampling:
        """Compute the uniforms of every possible anchor; the device selects."""
        seqs = [ahead[b].seq for b in drawing]
        most = max(s.num_drafts for s in ahead)
        keys = [
            RoundKey(seq.seed, seq.request.choice, ahead[b].stop + count)
            for b, seq in zip(drawing, seqs, strict=True)
            for count in range(most + 1)
        ]
        block_size = self._proposer.block_size
        uniforms = round_uniforms(keys, num_positions=block_size)[:, :, Purpose.DRAFT]
        temperatures = [seq.request.params.temperature for seq in seqs]
        (rows,) = upload([np.array(drawing, dtype=np.int64)], self._device)
        return BlockSampling(
            rows=rows,
            temperatures=place(np.array(temperatures, dtype=np.float32), self._device),
            uniforms=_of_anchor(
                place(uniforms.reshape(len(seqs), most + 1, block_size), self._device),
                accepted[rows],
            ),
        )


def _of_anchor(
    uniforms: Float[Tensor, "R A K"], accepted: Int[Tensor, " R"]
) -> Float[Tensor, "R K"]:
    return uniforms[torch.arange(len(uniforms), device=uniforms.device), accepted]


def _possible_slots(ahead: Sequence[ScheduledSequence], num_slots: int) -> np.ndarray:
    """List the slots from each sequence's first new token on, [E, most drafts + num_slots].

    A shorter row is padded with its last slot, which is not read.
    """
    width = max(s.num_drafts for s in ahead) + num_slots
    slots = np.empty((len(ahead), width), dtype=np.int64)
    for row, s in zip(slots, ahead, strict=True):
        own = s.seq.table.slots(s.stop, s.stop + s.num_drafts + num_slots)
        row[: len(own)] = own
        row[len(own) :] = own[-1]
    return slots


def _join(
    drafting: Sequence[ScheduledSequence], launched: _Launched, fresh: DraftBlock | None
) -> DraftBlock:
    """Copy the blocks of two passes in the order of `drafting`."""
    ids: list[Tensor] = []
    confidences: list[Tensor] = []
    probs: list[Tensor] = []
    num_fresh = num_drawn = 0
    for scheduled in drafting:
        key = id(scheduled.seq)
        row = launched.rows.get(key)
        if row is not None:
            block, drawn = launched.block, launched.draws.get(key)
        else:
            assert fresh is not None, "a sequence without a block"
            block, row, drawn = fresh, num_fresh, num_drawn
            num_fresh += 1
        ids.append(block.draft_ids[row])
        if block.confidence_logits is not None:
            confidences.append(block.confidence_logits[row])
        if not scheduled.seq.request.params.is_greedy:
            assert block.draft_probs is not None, "a sequence draws without a distribution"
            assert drawn is not None, "a sequence draws without a distribution"
            probs.append(block.draft_probs[drawn])
            num_drawn += block is fresh
    return DraftBlock(
        draft_ids=torch.stack(ids),
        draft_probs=torch.stack(probs) if probs else None,
        confidence_logits=torch.stack(confidences) if confidences else None,
    )
