"""Checks attention, context KV and greedy text of the device against references."""

import torch
from torch import Tensor

from draft import ContextKernel, ContextKVMode, ContextKVWriter
from dspark.bench.compare.identity import generate_reference
from dspark.bench.gpu.engines import (
    context_kernel_of,
    device_backend_of,
    engine_of,
    greedy_texts,
    interprets_triton,
    random_prompts,
)
from dspark.bench.gpu.pairs import SMALL, TINY, Pair, make_pair
from dspark.bench.gpu.results import Check, Found
from kv_pool import AttentionBackend, AttentionOptions, KVLayout, KVPool, ReferenceAttention

TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 2e-2}
PAGE_SIZE = 16


def triton_attention(device: torch.device, tiny: bool) -> Found:
    """Check the Triton kernels against the reference, on CUDA or in the interpreter."""
    if device.type == "cuda" or interprets_triton():
        from kv_pool.attention.triton_attention import TritonAttention

        backend = TritonAttention(page_size=PAGE_SIZE, device=device)
        yield from _attention("triton", backend, device, tiny=tiny)
    else:
        yield Check("attention by triton", True, "not available: no CUDA device and no interpreter")


def flashinfer_attention(device: torch.device, tiny: bool) -> Found:
    """Check FlashInfer, if installed; the last section, because its kernels may be built."""
    try:
        make = device_backend_of(device, attention_backend="flashinfer").make_attention
        backend = make(PAGE_SIZE)
    except Exception as error:
        yield Check("attention by flashinfer", True, f"not available: {error}")
        return
    yield from _attention("flashinfer", backend, device, tiny=tiny)


def _attention(name: str, backend: AttentionBackend, device: torch.device, *, tiny: bool) -> Found:
    """Check with the heads of the released pair: in bfloat16, and in other dtypes if cheap."""
    dtypes = [torch.bfloat16] if name == "flashinfer" else list(TOLERANCE)
    for dtype in dtypes:
        for causal in (True, False):
            worst = _attention_difference(backend, device, dtype, causal=causal, tiny=tiny)
            yield Check(
                f"attention by {name}, {dtype}, {'causal' if causal else 'not causal'}",
                worst <= 2 * TOLERANCE[dtype],
                f"largest difference {worst:.1e}",
            )


def _attention_difference(
    backend: AttentionBackend,
    device: torch.device,
    dtype: torch.dtype,
    *,
    causal: bool,
    tiny: bool,
) -> float:
    query_lens, kv_lens = [8, 1, 8, 70], [900, 300, 8, 75]
    num_heads, num_kv_heads, head_dim = (4, 2, 64) if tiny else (32, 8, 128)
    if tiny:
        query_lens, kv_lens = [8, 1], [30, 20]
    tables, at = [], 0
    for kv_len in kv_lens:
        count = -(-kv_len // PAGE_SIZE)
        tables.append(list(range(at, at + count))[::-1])
        at += count
    generator = torch.Generator(device).manual_seed(0)

    def noise(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, device=device).to(dtype)

    query = noise(sum(query_lens), num_heads, head_dim)
    keys, values = (noise(at * PAGE_SIZE, num_kv_heads, head_dim) for _ in range(2))
    found, expected = (
        each.plan(query_lens=query_lens, kv_lens=kv_lens, page_tables=tables, causal=causal).attend(
            query.to(kind), keys.to(kind), values.to(kind), AttentionOptions(head_dim**-0.5)
        )
        for each, kind in (
            (backend, dtype),
            (ReferenceAttention(page_size=PAGE_SIZE, device=device), torch.float32),
        )
    )
    return float((found.float() - expected.float()).abs().max())


def context(device: torch.device, tiny: bool) -> Found:
    """Check stacked and fused context KV against the per-layer path."""
    shape = TINY if tiny else SMALL
    kernel = context_kernel_of(device)
    for dtype, tolerance in TOLERANCE.items():
        pair = make_pair(shape, dtype=dtype, device=device, max_len=256)
        for name, chosen in (("stacked", None), ("fused", kernel)):
            if name == "fused" and chosen is None:
                yield Check("context, fused", device.type != "cuda", "no kernel on this device")
                continue
            worst = _context_difference(pair, chosen, device)
            yield Check(
                f"context, {name} against per layer, {dtype}",
                worst <= 1.0,
                f"{worst:.2f} of what {tolerance:g} allows",
            )


def _context_difference(pair: Pair, kernel: ContextKernel | None, device: torch.device) -> float:
    """Return the largest difference relative to atol + rtol * |expected| of the dtype."""
    config, dtype = pair.draft.config, pair.target.dtype
    generator = torch.Generator(device).manual_seed(0)
    aux = torch.randn(33, config.aux_size, generator=generator, device=device).to(dtype)
    slots = torch.randperm(64, generator=generator, device=device)[:33]
    positions = torch.arange(33, device=device)

    def written(mode: ContextKVMode, kernel: ContextKernel | None) -> Tensor:
        pool = draft_pool(pair, 4, device)
        writer = ContextKVWriter(network=pair.draft.network, pool=pool, mode=mode, kernel=kernel)
        with torch.inference_mode():
            writer.write_context_kv(aux, positions, slots)
        return torch.stack([pool.draft_keys, pool.draft_values]).float()

    found, expected = written("on", kernel), written("off", None)
    allowed = TOLERANCE[dtype] * (1 + expected.abs())
    return float(((found - expected).abs() / allowed).max())


def draft_pool(pair: Pair, num_pages: int, device: torch.device) -> KVPool:
    """Make a pool that stores the draft context only."""
    layout = KVLayout(page_size=PAGE_SIZE, device=device, draft=pair.draft.network.kv_shapes)
    return KVPool(layout, num_pages=num_pages)


def texts(device: torch.device, tiny: bool) -> Found:
    """Check greedy text in float32 with transformers, with and without graphs and speculation."""
    shape = TINY if tiny else SMALL
    pair = make_pair(shape, dtype=torch.float32, device=device, max_len=256)
    count, new_tokens = (3, 8) if tiny else (6, 32)
    prompts = random_prompts(count, vocab_size=shape.vocab_size, low=3, high=40)
    expected: list[list[int]] | None = None
    for speculates in (True, False):
        for graphs in ("auto", "off"):
            built = engine_of(
                pair,
                device,
                speculates=speculates,
                graphs=graphs,
                num_pages=128,
                max_running_requests=count,
            )
            details = built.engine.info.details
            label = f"speculation {'on' if speculates else 'off'}, graphs {graphs}"
            if expected is None:
                check = details["target"]["self_check"]["logits_difference"]  # type: ignore[index]
                yield Check("paged against dense logits, float32", True, f"{check:.1e}")
                expected = [
                    list(generate_reference(pair.target, p, max_new_tokens=new_tokens))
                    for p in prompts
                ]
            found = greedy_texts(built, prompts, max_new_tokens=new_tokens)
            same = sum(a == b for a, b in zip(found, expected, strict=True))
            how = f"{same} of {count} texts; attention {details['attention']}"
            reason = details["graphs"]["reason"]  # type: ignore[index]
            recorded = f"graphs: {reason}" if reason else "graphs recorded"
            right = same == count and (graphs == "off" or reason is None)
            yield Check(f"greedy text, {label}", right, f"{how}, {recorded}")
