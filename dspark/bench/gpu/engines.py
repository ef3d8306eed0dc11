"""Builds engines over a pair in memory, with the device's backend or with parts switched off."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import torch

from draft import ContextKernel
from dspark.bench.gpu.pairs import Pair
from engine.api import EngineSamplingParams, Request
from engine.build import Built, wire_engine
from engine.config import EngineConfig
from engine.core.offline import drive
from engine.cuda_graphs.tape import TapeCapturer
from engine.model_setup.device_backend import DeviceBackend, choose_device_backend
from kv_pool.attention.fixed_reference import FixedReference


def device_backend_of(device: torch.device, **settings: Any) -> DeviceBackend:
    """Return the backend of the device; a CPU records tapes in place of graphs, for a dry run."""
    found = choose_device_backend(EngineConfig(target="random", **settings), device)
    if device.type == "cuda" or settings.get("graphs") == "off":
        return found
    return dataclasses.replace(
        found,
        make_attention=lambda page_size: FixedReference(page_size=page_size, device=device),
        capturer=TapeCapturer(),
        graphs_reason=None,
    )


def interprets_triton() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def context_kernel_of(device: torch.device) -> ContextKernel | None:
    """Return the kernel of the device, or on a CPU the interpreted one if that is enabled.

    It is for single writes: the interpreter is too slow for engines of a dry run.
    """
    if device.type == "cuda":
        return device_backend_of(device).context_kernel
    if not interprets_triton():
        return None
    from draft.context.triton_context import FusedContext

    return FusedContext()


def engine_of(
    pair: Pair,
    device: torch.device,
    *,
    speculates: bool = True,
    graphs: str = "auto",
    attention_backend: str = "auto",
    **settings: Any,
) -> Built:
    """Build an engine; settings are fields of EngineConfig."""
    backend: dict[str, Any] = {
        "graphs": graphs,
        "attention_backend": attention_backend,
        "dtype": str(pair.target.dtype).removeprefix("torch."),
    }
    return wire_engine(
        EngineConfig(
            target="random",
            native_kernels="off",
            draft_budget="always",
            **backend,
            **settings,
        ),
        target=pair.target,
        draft=pair.draft if speculates else None,
        device=device,
        device_backend=device_backend_of(device, **backend),
    )


def greedy_texts(
    built: Built, prompts: Sequence[Sequence[int]], *, max_new_tokens: int
) -> list[list[int]]:
    """Return the output ids of all prompts, run concurrently."""
    params = EngineSamplingParams(max_new_tokens=max_new_tokens)
    requests = [Request(str(i), tuple(p), params) for i, p in enumerate(prompts)]
    with torch.inference_mode():
        runs = drive(built.engine, requests, concurrency=len(requests))
    return [run.token_ids for run in runs]


def random_prompts(count: int, *, vocab_size: int, low: int, high: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(low, high + 1, (count,), generator=generator).tolist()
    return [torch.randint(1, vocab_size, (n,), generator=generator).tolist() for n in lengths]
