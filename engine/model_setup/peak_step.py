"""Runs the largest step of an engine on dummy tokens, to measure its memory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from draft import DraftBlock, Proposer
from engine.api import EngineSamplingParams, Request
from engine.runner.batch import batch_of_rows, build_batch, build_block_request
from engine.runner.target_model import Target
from engine.sampling.draft_token_masks import DraftTokenMasks
from engine.sampling.token_masks import EVERYTHING
from engine.sampling.uniforms import UniformPlan, plan_uniforms
from engine.sampling.verify_step import StepOptions, verify_step
from engine.scheduler.plan import ScheduledSequence, StepPlan
from engine.scheduler.sequence import SequenceState
from kv_pool import PageTable

# Every option that allocates tensors of vocabulary size.
_ALL_OPTIONS = EngineSamplingParams(
    max_new_tokens=1 << 20,
    temperature=1.0,
    top_k=50,
    top_p=0.9,
    min_p=0.05,
    repetition_penalty=1.1,
    num_logprobs=5,
    prompt_logprobs_from=0,
)
# Captured rounds draw as well, in the draft pass alone; other options apply outside of graphs.
_CAPTURED = EngineSamplingParams(max_new_tokens=1 << 20, temperature=1.0)
_TAIL_ROWS, _TAIL_KEYS = 64, 1024  # tokens


class _Everything:
    """A TokenMask that allows every token: it takes the memory of any grammar's."""

    def fill(self, draft_ids: Sequence[int], words: npt.NDArray[np.uint32]) -> None:
        words[:] = EVERYTHING

    def commit(self, token_id: int) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class PeakStep:
    """Describes a round of max_running sequences together with a full prompt chunk.

    All sequences use the same pages, so a pool of `num_pages` holds the step.
    """

    max_running: int  # sequences
    num_draft_tokens: int  # verified in a round; beyond a block they are a lookup's
    block_size: int  # of the draft model; 0 without one
    num_slots: int  # of a draft block
    chunk_tokens: int  # 0: what graphs capture, rounds without a verdict
    page_size: int  # tokens

    @property
    def is_lookup(self) -> bool:
        """Return whether the widest windows are those of lookups."""
        return self.num_draft_tokens > self.block_size

    @property
    def num_pages(self) -> int:
        longest = max(self.chunk_tokens, 1 + max(self.num_slots, self.num_draft_tokens + 1))
        return -(-longest // self.page_size)

    def plan(self) -> StepPlan:
        """Plan every round, and the chunk if there is one."""
        params = _ALL_OPTIONS if self.chunk_tokens else _CAPTURED
        rounds = [
            ScheduledSequence(
                seq=self._sequence(2, 1, params),
                start=1,
                stop=2,
                num_drafts=self.num_draft_tokens,
                samples=True,
                lookup_ids=(0,) * self.num_draft_tokens if self.is_lookup else (),
            )
            for _ in range(self.max_running)
        ]
        if not self.chunk_tokens:
            return StepPlan(tuple(rounds))
        chunk = ScheduledSequence(
            seq=self._sequence(self.chunk_tokens, self.chunk_tokens, params),
            start=0,
            stop=self.chunk_tokens,
            num_drafts=0,
            samples=True,
            logprob_rows=range(self.chunk_tokens - 1),
        )
        return StepPlan((*rounds, chunk))

    def run(self, target: Target, proposer: Proposer, *, device: torch.device) -> None:
        """Compute the plan as EngineCore.step does, without a scheduler."""
        plan, vocab_size = self.plan(), target.vocab_size
        kept: DraftBlock | None = None
        if self.is_lookup and proposer.block_size > 0:
            # Some sequences may draft while others look up; all of both is the most.
            drafting = replace(self, num_draft_tokens=proposer.block_size).plan()
            drawn = plan_uniforms(drafting, block_size=proposer.block_size, device=device)
            kept = self._propose(drafting, drawn, proposer, vocab_size, device)
        draws = plan_uniforms(plan, block_size=proposer.block_size, device=device)
        block = self._propose(plan, draws, proposer, vocab_size, device)
        batch = build_batch(plan, block, device=device)
        output = target.forward(batch)
        if proposer.block_size > 0:
            proposer.write_context(output.aux_hidden, batch.positions, batch.slot_mapping)
        if not self.chunk_tokens:
            return
        options = StepOptions.of(plan, vocab_size=vocab_size, device=device)
        verify_step(plan, batch, block, output, draws, options)
        del kept

    def _propose(
        self,
        plan: StepPlan,
        draws: UniformPlan | None,
        proposer: Proposer,
        vocab_size: int,
        device: torch.device,
    ) -> DraftBlock | None:
        if not plan.drafting:
            return None
        sampling = None
        if draws is not None:
            sampling = draws.of_block(plan, plan.drafting, device=device)
        return proposer.propose(
            build_block_request(
                plan.drafting,
                sampling,
                mask=DraftTokenMasks.of(plan.drafting, vocab_size=vocab_size, device=device),
                num_slots=self.num_slots,
                device=device,
            )
        )

    def run_tail(self, target: Target, *, max_len: int, device: torch.device) -> None:
        """Run the end of a prompt whose prefix is cached, as in a conversation's next turn.

        Attention splits the keys of few rows with many keys, in a kernel that no other start-up
        pass uses. Without this pass the first such request would wait until it is compiled.
        max_len: of the target, tokens.
        """
        stop = min(_TAIL_KEYS, max_len)
        ids = torch.zeros(stop, dtype=torch.long, device=device)
        table = [0] * -(-stop // self.page_size)
        rows = ids, table, max(0, stop - _TAIL_ROWS), stop
        target.forward(batch_of_rows([rows], page_size=self.page_size))

    def _sequence(
        self, length: int, num_prompt: int, params: EngineSamplingParams
    ) -> SequenceState:
        return SequenceState(
            request=Request(
                "largest step",
                (0,) * num_prompt,
                params,
                token_mask=_Everything() if self.chunk_tokens else None,
            ),
            arrival=0,
            seed=0,
            arrived_at=0.0,
            table=PageTable(self.page_size, range(self.num_pages)),
            token_ids=[0] * length,
        )
