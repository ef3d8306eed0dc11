"""Compares a draft's kernels with PyTorch, over a small pool of random keys and values."""

import logging
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from draft import (
    BlockKernel,
    BlockRequest,
    ContextKernel,
    ContextKVWriter,
    DSparkNetwork,
    DSparkProposer,
)
from draft.context.context_kv import ContextKVMode
from engine.cpu_kernels.compiling import CpuKernelsUnavailable
from engine.loading.as_loaded import as_loaded
from engine.model_setup.device_backend import DeviceBackend
from kv_pool import KVLayout, KVPool, ReferenceAttention

logger = logging.getLogger(__name__)

CONTEXTS = (5, 0, 70)  # tokens; the longest spans two key blocks of the CPU attention
_PAGE_SIZE = 4  # tokens
# Relative to the largest magnitude. Rounding in another order over all layers stays below it; a
# wrong mask or slot gives a difference as large as the magnitude.
_ALLOWED = {torch.float32: 1e-2, torch.float16: 5e-2, torch.bfloat16: 1e-1}


@torch.inference_mode()
def check_device_backend(
    network: DSparkNetwork, device_backend: DeviceBackend, *, device: torch.device
) -> DeviceBackend:
    """Run the device's attention and context kernel once; replace what fails or differs.

    So no kernel runs for the first time in a request. Raises LoadError when an attention fails
    that the config names.
    """
    while device_backend.attention != "reference":
        problem = _attention_problem(network, device_backend)
        if problem is None:
            break
        device_backend = device_backend.slower("draft", problem, device)
    kernel = device_backend.context_kernel
    problem = None if kernel is None else _kernel_problem(network, kernel)
    if problem is None:
        return device_backend
    logger.warning("the fused context kernel is not used: %s", problem)
    return replace(device_backend, context_kernel=None, context_reason="it fails for this draft")


def _attention_problem(network: DSparkNetwork, device_backend: DeviceBackend) -> str | None:
    pool, tables, lengths = _random_pool(network)
    request = _request(network, tables, lengths, page_size=pool.page_size)
    reference = ReferenceAttention(page_size=pool.page_size, device=pool.draft_keys.device)
    try:
        found, expected = (
            DSparkProposer(network=network, pool=pool, attention=attention, context_kv="off")
            .run_torch_pass(request)
            .hidden
            for attention in (device_backend.make_attention(pool.page_size), reference)
        )
    except Exception as error:  # kernel compilers raise any type
        return str(error) or type(error).__name__
    return _difference(found, expected)


def _kernel_problem(network: DSparkNetwork, kernel: ContextKernel) -> str | None:
    _, _, lengths = _random_pool(network)  # no longer than the rotary table
    num_tokens, device = sum(lengths), network.norm.weight.device
    generator = torch.Generator(device).manual_seed(0)
    size = num_tokens, network.config.aux_size
    aux_hidden = torch.randn(size, generator=generator, device=device).to(network.dtype)
    positions = torch.arange(num_tokens, device=device) % max(lengths)

    def written(mode: ContextKVMode, chosen: ContextKernel | None) -> Tensor:
        pool, _, _ = _random_pool(network)
        slots = torch.arange(num_tokens, device=device).flip(0)
        writer = ContextKVWriter(network=network, pool=pool, mode=mode, kernel=chosen)
        writer.write_context_kv(aux_hidden, positions, slots)
        return torch.stack([pool.draft_keys, pool.draft_values])

    try:
        return _difference(written("auto", kernel), written("off", None))
    except Exception as error:  # kernel compilers raise any type
        return str(error) or type(error).__name__


def _difference(found: Tensor, expected: Tensor) -> str | None:
    """Describe a difference beyond rounding; None when there is none."""
    a, b = found.float(), expected.float()
    difference = float((a - b).abs().max() / b.abs().max())
    if difference <= _ALLOWED[expected.dtype]:  # NaN is not
        return None
    return f"it differs by {difference:.1e} of the largest number"


@torch.inference_mode()
def difference_of(network: DSparkNetwork, kernel_over: Callable[[KVPool], BlockKernel]) -> float:
    """Measure the largest relative difference of a kernel's pass to PyTorch's; infinite when its
    tokens differ.

    Its tokens are compared with those that PyTorch picks from the kernel's logits, so rounding
    cannot change them. Raises CpuKernelsUnavailable when the kernel declines the batch.
    """
    pool, tables, lengths = _random_pool(network)
    # Layer by layer: the stacked form would move the weights.
    reference = DSparkProposer(
        network=network,
        pool=pool,
        attention=ReferenceAttention(page_size=pool.page_size, device=pool.draft_keys.device),
        context_kv="off",
    )
    request = _request(network, tables, lengths, page_size=pool.page_size)
    kernel = kernel_over(pool)
    found = kernel.run(request)
    if found is None:
        raise CpuKernelsUnavailable(kernel.reason or "it declines a small batch")
    with as_loaded(network):
        expected, block = reference.run_torch_pass(request), reference.sample_tokens(request, found)
    picked = found.draft_ids
    if picked is not None and not torch.equal(picked, block.draft_ids):
        return float("inf")
    return max(
        float((a - b).abs().max() / b.abs().max())
        for a, b in (
            (found.hidden, expected.hidden),
            (found.base_logits, expected.base_logits),
        )
    )


def _random_pool(network: DSparkNetwork) -> tuple[KVPool, list[list[int]], list[int]]:
    """Make a pool of random values, page tables with interleaved pages, and context lengths."""
    num_slots = network.config.num_slots
    longest = min(a.rotary.num_positions for a in network.attentions) - num_slots
    lengths = [min(length, longest) for length in CONTEXTS]
    num_pages = -(-(max(lengths) + num_slots) // _PAGE_SIZE)
    device = network.norm.weight.device
    layout = KVLayout(page_size=_PAGE_SIZE, device=device, draft=network.kv_shapes)
    pool = KVPool(layout, num_pages=len(lengths) * num_pages)
    generator = torch.Generator(device).manual_seed(0)
    pool.draft_keys.normal_(generator=generator)
    pool.draft_values.normal_(generator=generator)
    tables = [list(range(b, pool.num_pages, len(lengths))) for b in range(len(lengths))]
    return pool, tables, lengths


def _request(
    network: DSparkNetwork, tables: list[list[int]], lengths: list[int], *, page_size: int
) -> BlockRequest:
    device, num_slots = network.norm.weight.device, network.config.num_slots
    starts = torch.tensor(lengths, device=device)
    at = starts[:, None] + torch.arange(num_slots, device=device)  # (B, N)
    pages = torch.tensor(tables, device=device).gather(1, at // page_size)
    return BlockRequest(
        anchor_ids=(starts + 1) * 7919 % network.config.vocab_size,
        anchor_positions=starts,
        slots=pages * page_size + at % page_size,
        page_tables=tables,
        context_lens=lengths,
    )
