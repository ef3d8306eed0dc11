"""Single parts of a round, run on an idle engine's own models and pool, at a shape of choice.

The pages are taken without asking the scheduler, so nothing may run, and nothing that was cached is
true afterwards. What is computed is nonsense; what it takes is not, for time does not depend on
the numbers.
"""

import dataclasses

import torch
from torch import Tensor

from draft import BlockRequest, BlockSampling, DSparkProposer
from dspark.bench.profile.timing import Case
from engine.build import Built
from engine.runner.batch import ScheduleBatch, batch_of_rows


class Rig:
    """Makes cases to be timed. Each prepares its input once, outside of the clock."""

    def __init__(self, built: Built, device: torch.device) -> None:
        self._built = built
        self._device = device
        self._generator = torch.Generator().manual_seed(0)
        self.page_size = built.pool.page_size
        self.num_slots = built.proposer.num_slots
        self.max_tokens = min(built.pool.num_slots - self.num_slots, built.target.max_len)

    def target_pass(self, *, context: int, rows: int, has_logits: bool = True) -> Case:
        """A window of `rows` after `context` tokens of one sequence; logits of each row."""
        batch = self._batch(context, rows)
        if not has_logits:
            batch = dataclasses.replace(batch, logit_rows=batch.logit_rows[:0])
        return lambda: self._built.runner.forward(batch)

    def draft_round(self, *, context: int) -> Case:
        """One greedy block after `context` tokens of one sequence."""
        request = self._block_request(context)
        return lambda: self._built.proposer.propose(request)

    def draft_pass(self, *, context: int) -> Case | None:
        """The same as far as the base logits; None where a round is one recording.

        A row that draws has its tokens picked outside of a kernel.
        """
        proposer = self._built.proposer
        if not isinstance(proposer, DSparkProposer):
            return None
        drawn = BlockSampling(
            rows=torch.zeros(1, dtype=torch.long, device=self._device),
            temperatures=torch.ones(1, device=self._device),
            uniforms=torch.zeros(1, proposer.block_size, dtype=torch.float64, device=self._device),
        )
        request = dataclasses.replace(self._block_request(context), sampling=drawn)
        return lambda: proposer.run_pass(request)

    def draft_head(self) -> Case:
        """The head's product over one block, alone."""
        assert self._built.draft is not None
        network = self._built.draft.network
        hidden = self._hidden(network.config.block_size, network.config.hidden_size)
        hidden = hidden.to(network.dtype)
        return lambda: network.base_logits(hidden[None])

    def context_write(self, *, rows: int) -> Case:
        assert self._built.draft is not None
        aux = self._hidden(rows, self._built.draft.network.config.aux_size)
        positions = torch.arange(rows, device=self._device)
        return lambda: self._built.proposer.write_context(aux, positions, positions)

    def prefill(self, *, num_tokens: int, chunk: int) -> Case:
        """A whole prompt, chunk after chunk, as a step does it: logits of the last row only, and
        every row's context write."""
        steps = []
        for start in range(0, num_tokens, chunk):
            batch = self._batch(start, min(chunk, num_tokens - start))
            last = batch.logit_rows[-1:] if start + chunk >= num_tokens else batch.logit_rows[:0]
            steps.append(dataclasses.replace(batch, logit_rows=last))

        def run() -> None:
            for batch in steps:
                output = self._built.runner.forward(batch)
                self._built.proposer.write_context(
                    output.aux_hidden, batch.positions, batch.slot_mapping
                )

        return run

    def _block_request(self, context: int) -> BlockRequest:
        return BlockRequest(
            anchor_ids=self._ids(1),
            anchor_positions=torch.tensor([context], device=self._device),
            slots=torch.arange(context, context + self.num_slots, device=self._device)[None],
            page_tables=[self._table(context + self.num_slots)],
            context_lens=[context],
        )

    def _batch(self, context: int, rows: int) -> ScheduleBatch:
        stop = context + rows
        piece = (self._ids(stop), self._table(stop), context, stop)
        return batch_of_rows([piece], page_size=self.page_size)

    def _table(self, num_tokens: int) -> list[int]:
        """Pages one after another: position i lies in slot i."""
        assert num_tokens <= self._built.pool.num_slots, num_tokens
        return list(range(-(-num_tokens // self.page_size)))

    def _ids(self, count: int) -> Tensor:
        vocab = self._built.target.vocab_size
        return torch.randint(0, vocab, (count,), generator=self._generator).to(self._device)

    def _hidden(self, rows: int, width: int) -> Tensor:
        hidden = torch.randn(rows, width, generator=self._generator)
        return hidden.to(self._device, self._built.target.dtype)
