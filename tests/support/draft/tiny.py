"""Builds small random drafts, and sequences on shuffled pages."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from draft import BlockRequest, BlockSampling, DSparkConfig, DSparkNetwork, LayerConfig
from draft.config import gemma4_variant
from kv_pool import KVLayout, KVPool, PageTable, ReferenceAttention

CPU = torch.device("cpu")

CONFIG = DSparkConfig(
    hidden_size=32,
    intermediate_size=48,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    vocab_size=61,
    rms_norm_eps=1e-6,
    attention_bias=False,
    layers=(LayerConfig(rope_theta=10_000.0),) * 3,
    block_size=4,
    mask_token_id=60,
    tap_layers=(0, 2),
    markov_kind="vanilla",
    markov_rank=8,
    has_confidence_head=True,
    confidence_with_markov=True,
)


GEMMA4 = replace(
    CONFIG,
    layers=(LayerConfig(rope_theta=10_000.0, rotary_fraction=0.5),) * 3,
    variant=gemma4_variant(shares_kv=True, logit_cap=5.0),
)


def tiny_config(**changes: object) -> DSparkConfig:
    return replace(CONFIG, **changes)  # type: ignore[arg-type]


def random_network(
    config: DSparkConfig = CONFIG, *, seed: int = 0, max_positions: int = 64
) -> DSparkNetwork:
    """Build a network with distinct random parameters, norm weights and biases included."""
    generator = torch.Generator().manual_seed(seed)
    network = DSparkNetwork(config, max_positions=max_positions, device=CPU)
    with torch.no_grad():
        scalars = [(n, b) for n, b in network.named_buffers() if n.endswith("layer_scalar")]
        for name, parameter in [*network.named_parameters(), *scalars]:
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name or name.endswith("layer_scalar"):
                parameter.copy_(1 + 0.3 * noise)
            else:
                parameter.copy_(noise * 0.3)
        if network.vocabulary is not None:
            tokens = torch.randperm(config.vocab_size, generator=generator)[: config.num_outputs]
            network.vocabulary.target_ids.copy_(tokens.sort().values)
    return network.requires_grad_(False).eval()


def new_pool(
    config: DSparkConfig,
    *,
    page_size: int = 4,
    num_slots: int = 256,
    dtype: torch.dtype = torch.float32,
    device: torch.device = CPU,
) -> KVPool:
    layout = KVLayout(page_size=page_size, device=device, draft=config.kv_shapes(dtype))
    return KVPool(layout, num_pages=-(-num_slots // page_size))


def reference_attention(pool: KVPool) -> ReferenceAttention:
    return ReferenceAttention(page_size=pool.page_size, device=CPU)


def shuffled_tables(pool: KVPool, lengths: Sequence[int], *, seed: int = 0) -> list[PageTable]:
    """Build a page table for each sequence, on random pages of the pool."""
    generator = torch.Generator().manual_seed(seed)
    free = torch.randperm(pool.num_pages, generator=generator).tolist()
    tables = []
    for length in lengths:
        table = PageTable(page_size=pool.page_size)
        table.extend([free.pop() for _ in range(table.missing_pages(length))])
        tables.append(table)
    return tables


def slots_of(table: PageTable, start: int, stop: int) -> Tensor:
    return torch.from_numpy(table.slots(start, stop))


def block_request(
    anchor_ids: Sequence[int],
    context_lens: Sequence[int],
    tables: Sequence[PageTable],
    *,
    num_slots: int,
    sampling: BlockSampling | None = None,
) -> BlockRequest:
    slots = [
        slots_of(table, length, length + num_slots)
        for table, length in zip(tables, context_lens, strict=True)
    ]
    return BlockRequest(
        anchor_ids=torch.tensor(anchor_ids),
        anchor_positions=torch.tensor(context_lens),
        slots=torch.stack(slots),
        page_tables=[table.pages for table in tables],
        context_lens=list(context_lens),
        sampling=sampling,
    )


def parameter_bytes(module: nn.Module) -> int:
    """Count the bytes of the parameters' storages, each once."""
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage() for p in module.parameters()}
    return sum(storage.nbytes() for storage in storages.values())
