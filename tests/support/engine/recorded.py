"""Engines whose rounds are recorded and replayed on a CPU."""

from pathlib import Path
from typing import Any

import torch

from engine.build import Built, wire_engine
from engine.config import EngineConfig
from engine.cuda_graphs.tape import TapeCapturer
from engine.loading.target import LoadedTarget
from engine.model_setup.device_backend import DeviceBackend
from engine.observability.step_observer import StepObserver
from kv_pool.attention.fixed_reference import FixedReference
from tests.support.engine.tiny_models import CPU, load_tiny_draft, tiny_target


def taped() -> DeviceBackend:
    """As on CUDA, with a tape for a graph and the reference for a kernel."""
    return DeviceBackend(
        make_attention=lambda page_size: FixedReference(page_size=page_size, device=CPU),
        attention="reference",
        attention_reason=None,
        attention_demanded=False,
        context_kernel=None,
        context_reason=None,
        capturer=TapeCapturer(),
        graphs_reason=None,
    )


def graphed_engine(
    *,
    target: LoadedTarget | None = None,
    draft_folder: Path | None,
    device_backend: DeviceBackend | None = None,
    observer: StepObserver | None = None,
    **settings: Any,
) -> Built:
    """As tests.engine.tiny_models.tiny_engine makes one, with graphs."""
    target = target if target is not None else tiny_target()
    draft = load_tiny_draft(draft_folder, target) if draft_folder is not None else None
    settings = {
        "num_pages": 128,
        "page_size": 4,
        "prefill_chunk_tokens": 32,
        "max_running_requests": 6,
        "native_kernels": "off",
        "draft_budget": "always",
        **settings,
    }
    with torch.inference_mode(False):
        return wire_engine(
            EngineConfig(target="tiny", draft=str(draft_folder), **settings),
            target=target,
            draft=draft,
            device=CPU,
            device_backend=device_backend or taped(),
            observer=observer,
        )
