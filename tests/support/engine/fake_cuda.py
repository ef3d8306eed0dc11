"""Drives whole engine steps on the device "cuda" of a machine without one.

FakeTensorMode carries devices, shapes and dtypes, and computes no numbers. Reading a value on the
host raises; so do operations over tensors of two devices. Replaced are the parts that need a
device or numbers: CUDA's start and its counters of memory, the self-checks, kernel launches (their
arguments are checked), pinning, uploads, and reads by `download`, `tolist` and `cpu`, which are
counted and give zeros.
"""

import ctypes
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from draft import DSparkNetwork, TargetFacts, read_config
from draft.context import stacked_kv, triton_context
from engine.build import Built, wire_engine
from engine.config import EngineConfig
from engine.cuda_graphs.tape import TapeCapturer
from engine.loading import fused_norms
from engine.loading.draft import LoadedDraft
from engine.model_setup import prepared_models, target_backend
from engine.model_setup.device_backend import DeviceBackend
from engine.model_setup.target_check import TargetCheck
from engine.sampling import verify_step
from kv_pool.attention import triton_kernels
from kv_pool.attention.triton_attention import DeviceLimits, TritonAttention
from tests.support.engine.tiny_models import tiny_target

CUDA = torch.device("cuda")
_H200 = DeviceLimits(227 * 1024, 132)


@dataclass
class FakeCuda:
    """Records what an engine does."""

    launches: list[str] = field(default_factory=list)
    downloads: list[list[tuple[torch.Size, torch.dtype]]] = field(default_factory=list)
    uploads: int = 0
    blocking_uploads: int = 0
    num_reads: int = 0  # of tensors on the device, in addition to downloads

    def download(self, tensors: Sequence[Tensor]) -> list[np.ndarray[Any, Any]]:
        """Replace engine.runner.transfer.download; every verdict is a bonus token 0."""
        for tensor in tensors:
            assert isinstance(tensor, FakeTensor), "a download of a host tensor"
            assert tensor.device.type == "cuda", f"a download from {tensor.device}"
        self.downloads.append([(tensor.shape, tensor.dtype) for tensor in tensors])
        return [
            np.full(tensor.shape, tensor.dtype == torch.bool, dtype=np.float64)
            for tensor in tensors
        ]


class _Kernel:
    """Replaces a Triton kernel: every tensor argument must be on the device."""

    def __init__(self, name: str, seen: FakeCuda) -> None:
        self._name, self._seen = name, seen

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        assert all(size >= 1 for size in grid), (self._name, grid)

        def launch(*args: Any, **constants: Any) -> None:
            for at, value in enumerate(args):
                if isinstance(value, Tensor):
                    assert value.device.type == "cuda", f"{self._name}: argument {at} on the host"
            self._seen.launches.append(self._name)

        return launch


# A CPU build of PyTorch has no guard for CUDA devices, which indexing in Python needs.
_GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
C10_REGISTER_GUARD_IMPL(CUDA, c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA>)
"""


@cache
def register_guard() -> None:
    """Register a guard for CUDA devices that does nothing, for the rest of the process."""
    if torch.version.cuda is not None:
        return
    root = Path(torch.__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "guard.cpp", Path(folder) / "guard.so"
        source.write_text(_GUARD)
        compiler = ["c++", "-std=c++20", "-shared", "-fPIC", f"-I{root / 'include'}"]
        subprocess.run(
            [*compiler, str(source), f"-L{root / 'lib'}", "-lc10", "-o", str(library)], check=True
        )
        ctypes.CDLL(str(library))


@contextmanager
def fake_cuda() -> Iterator[FakeCuda]:
    """Let "cuda" exist within the block, for tensors without numbers."""
    register_guard()
    seen = FakeCuda()
    convert = Tensor.to

    def to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        target = kwargs.get("device", args[0] if args else None)
        is_upload = isinstance(target, torch.device) and target.type == "cuda"
        seen.uploads += is_upload and self.device.type == "cpu"
        if self.device.type != "cpu" or target != CUDA:
            return convert(self, *args, **kwargs)
        # A host tensor of one number would be copied for real: FakeTensorMode keeps constants.
        seen.blocking_uploads += not kwargs.get("non_blocking", False)
        return torch.empty(self.shape, dtype=self.dtype, device=CUDA)

    def tolist(self: Tensor) -> Any:
        seen.num_reads += self.device.type == "cuda"
        return np.zeros(self.shape, dtype=np.int64).tolist()

    def cpu(self: Tensor) -> Tensor:
        seen.num_reads += self.device.type == "cuda"
        return convert(self, "cpu")

    gib = 1024**3
    counters = {
        "mem_get_info": lambda device: (100 * gib, 140 * gib),
        "synchronize": lambda *_: None,
        "reset_peak_memory_stats": lambda *_: None,
        "memory_allocated": lambda *_: 0,
        "max_memory_allocated": lambda *_: 0,
        "empty_cache": lambda: None,
        "_lazy_init": lambda: None,
    }
    with ExitStack() as stack:
        enter = stack.enter_context
        enter(patch.multiple(torch.cuda, **counters))
        enter(patch.object(Tensor, "pin_memory", lambda self: self))
        enter(patch.object(Tensor, "to", to))
        enter(patch.object(FakeTensor, "tolist", tolist))
        enter(patch.object(Tensor, "cpu", cpu))
        enter(patch.object(verify_step, "download", seen.download))
        for module, names in (
            (triton_kernels, ("_attend", "_merge")),
            (triton_context, ("_store_kernel",)),
        ):
            for name in names:
                enter(patch.object(module, name, _Kernel(name, seen)))
        enter(
            patch.object(prepared_models, "check_device_backend", lambda network, found, **_: found)
        )
        enter(
            patch.object(target_backend, "check_target", lambda *_, **__: TargetCheck(1, 0.0, 0.0))
        )
        enter(patch.object(stacked_kv, "_PLAIN_TENSORS", (Tensor, nn.Parameter, FakeTensor)))
        enter(patch.object(fused_norms, "_agrees", lambda *_: True))
        enter(FakeTensorMode(allow_non_fake_inputs=True))
        yield seen


def fake_engine(draft_folder: Path | None, *, graphs: bool, **settings: Any) -> Built:
    """Wire an engine as on an H200 with the Triton backend. Call it within `fake_cuda`."""
    draft = None
    with torch.device(CUDA):
        target = tiny_target()
        if draft_folder is not None:
            facts = TargetFacts(target.hidden_size, target.num_layers, target.vocab_size)
            draft_config = read_config(draft_folder, target=facts)
            network = DSparkNetwork(draft_config, max_positions=target.max_len, device=CUDA)
            draft = LoadedDraft(draft_config, network.requires_grad_(False).eval())
    settings = {
        "num_pages": 128,
        "page_size": 4,
        "prefill_chunk_tokens": 32,
        "max_running_requests": 6,
        "draft_budget": "always",
        **settings,
    }
    config = EngineConfig(target="tiny", draft=str(draft_folder), device="cuda", **settings)
    return wire_engine(
        config,
        target=target,
        draft=draft,
        device=CUDA,
        device_backend=DeviceBackend(
            make_attention=lambda page_size: TritonAttention(
                page_size=page_size, device=CUDA, limits=_H200
            ),
            attention="triton",
            attention_reason=None,
            attention_demanded=True,
            context_kernel=triton_context.FusedContext(),
            context_reason=None,
            capturer=TapeCapturer() if graphs else None,
            graphs_reason=None if graphs else "switched off",
        ),
    )
