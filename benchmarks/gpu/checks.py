"""Does the device say what the references say? Each check is one line, with its number."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.gpu.engines import (
    acceleration_of,
    context_kernel_of,
    engine_of,
    greedy_texts,
    random_prompts,
)
from benchmarks.gpu.pairs import SMALL, TINY, Pair, PairShape, make_pair
from draft import ContextKernel, ContextKVMode, ContextKVWriter
from engine.identity import generate_reference
from kv_pool import AttentionBackend, KVPool, ReferenceAttention

_TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 2e-2}
_PAGE_SIZE = 16


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    passed: bool
    detail: str


def run_checks(device: torch.device, *, tiny: bool) -> Iterator[Check]:
    """Every check, each kept from breaking the rest."""
    shape = TINY if tiny else SMALL
    cases: list[Callable[[], Iterator[Check]]] = [
        lambda: _attention(device, tiny=tiny),
        lambda: _context(shape, device),
        lambda: _engines(shape, device, tiny=tiny),
    ]
    for case in cases:
        try:
            yield from case()
        except Exception as error:  # what breaks is a result of this program
            yield Check("broken off", False, f"{type(error).__name__}: {error}")


def _attention(device: torch.device, *, tiny: bool) -> Iterator[Check]:
    """Each attention that is there against the reference, over a ragged batch."""
    names = ["flashinfer", "triton"] if device.type == "cuda" else ["auto"]
    dtypes = [torch.float32] if tiny else [torch.float32, torch.float16, torch.bfloat16]
    for name in names:
        try:
            backend = acceleration_of(device, attention_backend=name).make_attention(_PAGE_SIZE)
        except Exception as error:
            yield Check(f"attention by {name}", name == "flashinfer", f"not there: {error}")
            continue
        for dtype in dtypes:
            for causal in (True, False):
                worst = _attention_difference(backend, device, dtype, causal=causal)
                title = f"attention by {name}, {dtype}, {'causal' if causal else 'not causal'}"
                yield Check(
                    title, worst <= 2 * _TOLERANCE[dtype], f"largest difference {worst:.1e}"
                )


def _attention_difference(
    backend: AttentionBackend, device: torch.device, dtype: torch.dtype, *, causal: bool
) -> float:
    query_lens, kv_lens = [8, 1, 8, 70], [900, 300, 8, 75]
    tables, at = [], 0
    for kv_len in kv_lens:
        count = -(-kv_len // _PAGE_SIZE)
        tables.append(list(range(at, at + count))[::-1])
        at += count
    generator = torch.Generator(device).manual_seed(0)

    def noise(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, device=device).to(dtype)

    query = noise(sum(query_lens), 8, 64)
    keys, values = noise(at * _PAGE_SIZE, 2, 64), noise(at * _PAGE_SIZE, 2, 64)
    found, expected = (
        each.plan(query_lens=query_lens, kv_lens=kv_lens, page_tables=tables, causal=causal).attend(
            query.to(kind), keys.to(kind), values.to(kind), scale=0.125
        )
        for each, kind in (
            (backend, dtype),
            (ReferenceAttention(page_size=_PAGE_SIZE, device=device), torch.float32),
        )
    )
    return float((found.float() - expected.float()).abs().max())


def _context(shape: PairShape, device: torch.device) -> Iterator[Check]:
    """Stacked and fused context keys and values against those written layer by layer."""
    kernel = context_kernel_of(device)
    for dtype, tolerance in _TOLERANCE.items():
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
    """Largest difference as a share of atol + rtol * |expected|, both the dtype's tolerance."""
    config, dtype = pair.draft.config, pair.target.dtype
    generator = torch.Generator(device).manual_seed(0)
    aux = torch.randn(33, config.aux_size, generator=generator, device=device).to(dtype)
    slots = torch.randperm(64, generator=generator, device=device)[:33]
    positions = torch.arange(33, device=device)

    def written(mode: ContextKVMode, kernel: ContextKernel | None) -> Tensor:
        pool = draft_pool(pair, 4, device)
        writer = ContextKVWriter(network=pair.draft.network, pool=pool, mode=mode, kernel=kernel)
        with torch.inference_mode():
            writer.write(aux, positions, slots)
        return torch.stack([pool.draft_keys, pool.draft_values]).float()

    found, expected = written("on", kernel), written("off", None)
    allowed = _TOLERANCE[dtype] * (1 + expected.abs())
    return float(((found - expected).abs() / allowed).max())


def draft_pool(pair: Pair, num_pages: int, device: torch.device) -> KVPool:
    """Room for context alone."""
    return KVPool(
        num_pages=num_pages,
        page_size=_PAGE_SIZE,
        target_shapes=(),
        target_dtype=pair.target.dtype,
        num_draft_layers=pair.draft.config.num_layers,
        draft_shape=pair.draft.config.kv_shape,
        device=device,
    )


def _engines(shape: PairShape, device: torch.device, *, tiny: bool) -> Iterator[Check]:
    """Greedy text in float32 against transformers', with and without graphs and speculation."""
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
            told = details["graphs"]["reason"]  # type: ignore[index]
            recorded = f"graphs: {told}" if told else "graphs recorded"
            right = same == count and (graphs == "off" or told is None)
            yield Check(f"greedy text, {label}", right, f"{how}, {recorded}")
