"""Builds a proposer over a pool, with sequences whose context KV is written."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draft import BlockRequest, BlockSampling, ContextKVMode, DSparkNetwork, DSparkProposer
from kv_pool import KVPool, PageTable
from tests.support.draft.tiny import (
    block_request,
    new_pool,
    reference_attention,
    shuffled_tables,
    slots_of,
)


@dataclass(frozen=True)
class Prompt:
    """Holds a sequence to draft for: the taps of its context, and its anchor."""

    aux_hidden: Tensor  # [a, A]
    anchor_id: int

    @property
    def context_len(self) -> int:
        return len(self.aux_hidden)


def prompts_of(network: DSparkNetwork, context_lens: Sequence[int]) -> list[Prompt]:
    generator = torch.Generator().manual_seed(5)
    size, vocab_size = network.config.aux_size, network.config.vocab_size
    return [
        Prompt(
            torch.randn(length, size, generator=generator),
            int(torch.randint(vocab_size, (1,), generator=generator)),
        )
        for length in context_lens
    ]


class Served:
    """Holds pool, proposer and page tables of some sequences, as an engine does."""

    def __init__(
        self,
        network: DSparkNetwork,
        prompts: Sequence[Prompt],
        *,
        page_size: int = 4,
        mode: ContextKVMode = "auto",
        seed: int = 0,
        num_slots: int = 256,
    ) -> None:
        self.prompts = prompts
        self.block_size = network.config.block_size
        self.num_slots = network.config.num_slots
        self.pool: KVPool = new_pool(
            network.config, page_size=page_size, num_slots=num_slots, dtype=network.dtype
        )
        self.proposer = DSparkProposer(
            network=network,
            pool=self.pool,
            attention=reference_attention(self.pool),
            context_kv=mode,
        )
        lengths = [prompt.context_len + self.num_slots for prompt in prompts]
        self.tables: list[PageTable] = shuffled_tables(self.pool, lengths, seed=seed)
        for prompt, table in zip(prompts, self.tables, strict=True):
            self.proposer.write_context(
                prompt.aux_hidden,
                torch.arange(prompt.context_len),
                slots_of(table, 0, prompt.context_len),
            )

    def request(self, sampling: BlockSampling | None = None) -> BlockRequest:
        return block_request(
            [prompt.anchor_id for prompt in self.prompts],
            [prompt.context_len for prompt in self.prompts],
            self.tables,
            num_slots=self.num_slots,
            sampling=sampling,
        )


def one_block(request: BlockRequest, b: int) -> BlockRequest:
    """Select one block of a request, greedy."""
    return BlockRequest(
        anchor_ids=request.anchor_ids[b : b + 1],
        anchor_positions=request.anchor_positions[b : b + 1],
        slots=request.slots[b : b + 1],
        page_tables=[request.page_tables[b]],
        context_lens=[request.context_lens[b]],
    )


def sample_rows(rows: Sequence[int], block_size: int, *, temperature: float = 1.0) -> BlockSampling:
    """Sample the given rows; a row's uniforms do not depend on the batch."""
    uniforms = [
        torch.rand(block_size, dtype=torch.float64, generator=torch.Generator().manual_seed(row))
        for row in rows
    ]
    return BlockSampling(
        rows=torch.arange(len(rows)) if not rows else torch.tensor(list(rows)),
        temperatures=torch.full((len(rows),), temperature),
        uniforms=torch.stack(uniforms),
    )
