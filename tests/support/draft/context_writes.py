"""Context writes of random tokens, for tests that compare writers."""

import torch
from torch import Tensor

from draft import ContextKernel, ContextKVMode, ContextKVWriter, DSparkConfig, DSparkNetwork
from kv_pool import KVPool
from tests.support.draft.tiny import CPU, new_pool

TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 2e-2}
UNWRITTEN_KEY, UNWRITTEN_VALUE = 7.0, 9.0


def random_tokens(
    config: DSparkConfig, num_tokens: int, *, device: torch.device = CPU
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw taps, positions and slots in random order."""
    generator = torch.Generator().manual_seed(num_tokens)
    aux_hidden = torch.randn(num_tokens, config.aux_size, generator=generator)
    positions = torch.randint(60, (num_tokens,), generator=generator)
    slots = torch.randperm(256, generator=generator)[:num_tokens]
    return aux_hidden.to(device), positions.to(device), slots.to(device)


def filled_pool(
    config: DSparkConfig, *, dtype: torch.dtype = torch.float32, device: torch.device = CPU
) -> KVPool:
    """Build a pool whose unwritten slots are recognisable."""
    pool = new_pool(config, dtype=dtype, device=device)
    pool.draft_keys.fill_(UNWRITTEN_KEY)
    pool.draft_values.fill_(UNWRITTEN_VALUE)
    return pool


def write_tokens(
    network: DSparkNetwork,
    mode: ContextKVMode,
    *,
    num_tokens: int,
    kernel: ContextKernel | None = None,
    device: torch.device = CPU,
) -> KVPool:
    """Write random tokens to a filled pool."""
    pool = filled_pool(network.config, dtype=network.dtype, device=device)
    writer = ContextKVWriter(network=network, pool=pool, mode=mode, kernel=kernel)
    aux_hidden, positions, slots = random_tokens(network.config, num_tokens, device=device)
    with torch.inference_mode():
        writer.write_context_kv(aux_hidden.to(network.dtype), positions, slots)
    return pool


def written_kv(
    network: DSparkNetwork, mode: ContextKVMode, *, num_tokens: int
) -> tuple[Tensor, Tensor]:
    """Return keys and values [L, N, H, D] that a writer stores for random tokens."""
    pool = write_tokens(network, mode, num_tokens=num_tokens)
    slots = random_tokens(network.config, num_tokens)[2]
    return pool.draft_keys[:, slots], pool.draft_values[:, slots]
