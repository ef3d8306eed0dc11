"""Builds cases that run single passes of a round at a given shape.

They use the models and the pool of an idle engine and bypass the scheduler: afterwards no cached
page is valid. The results are meaningless, but times do not depend on the values.
"""

import dataclasses

import torch
from torch import Tensor

from draft import BlockRequest, BlockSampling, DSparkProposer
from dspark.bench.workloads.timing import Case
from engine.build import Built
from engine.runner.batch import ScheduleBatch, batch_of_rows


class PassCases:
    """Builds cases for timing; the inputs are prepared in advance."""

    def __init__(self, built: Built, device: torch.device) -> None:
        self._built = built
        self._device = device
        self._generator = torch.Generator().manual_seed(0)
        self.page_size = built.pool.page_size
        self.num_slots = built.proposer.num_slots
        self.max_tokens = min(built.pool.num_slots - self.num_slots, built.target.max_len)

    def target_pass(self, *, context: int, rows: int, has_logits: bool = True) -> Case:
        """Return a target pass over `rows` after `context` tokens, with logits of each row."""
        batch = self._batch(context, rows)
        if not has_logits:
            batch = dataclasses.replace(batch, logit_rows=batch.logit_rows[:0])
        return lambda: self._built.runner.forward(batch)

    def draft_round(self, *, context: int) -> Case:
        """Return a greedy draft round after `context` tokens of one sequence."""
        request = self._block_request(context)
        return lambda: self._built.proposer.propose(request)

    def draft_pass(self, *, context: int) -> Case | None:
        """Return the draft pass up to the base logits; None if a graph covers the round.

        It uses a sampled row, whose tokens are picked outside the native kernel.
        """
        proposer = self._built.proposer
        if not isinstance(proposer, DSparkProposer):
            return None
        sampling = BlockSampling(
            rows=torch.zeros(1, dtype=torch.long, device=self._device),
            temperatures=torch.ones(1, device=self._device),
            uniforms=torch.zeros(1, proposer.block_size, dtype=torch.float64, device=self._device),
        )
        request = dataclasses.replace(self._block_request(context), sampling=sampling)
        return lambda: proposer.run_pass(request)

    def draft_head(self) -> Case:
        """Return the product with the LM head over one block."""
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
        """Return a chunked prefill with context writes, and logits of the last row."""
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
        """Return consecutive pages: position i is slot i."""
        assert num_tokens <= self._built.pool.num_slots, num_tokens
        return list(range(-(-num_tokens // self.page_size)))

    def _ids(self, count: int) -> Tensor:
        vocab = self._built.target.vocab_size
        return torch.randint(0, vocab, (count,), generator=self._generator).to(self._device)

    def _hidden(self, rows: int, width: int) -> Tensor:
        hidden = torch.randn(rows, width, generator=self._generator)
        return hidden.to(self._device, self._built.target.dtype)
