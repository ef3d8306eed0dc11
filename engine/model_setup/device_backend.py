"""What a device has to offer beyond PyTorch: attention, the context kernel, graphs; or why not."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec

import torch

from draft import ContextKernel
from engine.config import EngineConfig
from engine.cuda_graphs import CudaCapturer, GraphCapturer
from engine.errors import LoadError
from kv_pool import AttentionBackend, ReferenceAttention

logger = logging.getLogger(__name__)

MakeAttention = Callable[[int], AttentionBackend]  # page size, in tokens


@dataclass(frozen=True, slots=True)
class DeviceBackend:
    """One value for all that depends on the device. Each model gets an attention of its own."""

    make_attention: MakeAttention
    attention: str
    attention_reason: str | None  # why it is none of the faster ones
    attention_demanded: bool  # by name: then nothing else will do
    context_kernel: ContextKernel | None
    context_reason: str | None  # why context_kernel is None
    capturer: GraphCapturer | None
    graphs_reason: str | None  # why capturer is None

    def slower(self, reason: str, device: torch.device) -> "DeviceBackend":
        """The same with the next best attention, for a reason.

        Reference attention comes last, and graphs cannot hold it.
        """
        is_cuda = device.type == "cuda"
        if self.attention == "flashinfer" and _why_no_package("triton", is_cuda=is_cuda) is None:
            return replace(
                self,
                make_attention=_attention_maker("triton", device),
                attention="triton",
                attention_reason=reason,
            )
        return replace(
            self,
            make_attention=_attention_maker("reference", device),
            attention="reference",
            attention_reason=reason,
            capturer=None,
            graphs_reason="reference attention has no fixed shapes",
        )


def choose_device_backend(config: EngineConfig, device: torch.device) -> DeviceBackend:
    """The best for a device among what is installed and wanted.

    Raises LoadError when an attention is named that cannot be had.
    """
    is_cuda = device.type == "cuda"
    name, reason = _attention_name(config, is_cuda=is_cuda)
    kernel, kernel_reason = _context_kernel(is_cuda=is_cuda)
    graphs_reason = _why_no_graphs(config, name, is_cuda=is_cuda)
    return DeviceBackend(
        make_attention=_attention_maker(name, device),
        attention=name,
        attention_reason=reason,
        attention_demanded=config.attention_backend not in ("auto", "reference"),
        context_kernel=kernel,
        context_reason=kernel_reason,
        capturer=CudaCapturer(device) if graphs_reason is None else None,
        graphs_reason=graphs_reason,
    )


def _attention_name(config: EngineConfig, *, is_cuda: bool) -> tuple[str, str | None]:
    """The attention to try, and why none of the faster ones."""
    wanted = config.attention_backend
    if wanted == "reference":
        return wanted, "attention.backend is 'reference'"
    missing = {
        name: _why_no_package(package, is_cuda=is_cuda)
        for name, package in (("flashinfer", "flashinfer"), ("triton", "triton"))
    }
    if wanted != "auto":
        if missing[wanted] is not None:
            raise LoadError(f"attention.backend is {wanted!r}, but {missing[wanted]}")
        return wanted, None
    if config.dtype == "float32" and missing["triton"] is None:
        return "triton", None  # flashinfer has no kernels for it
    for name, reason in missing.items():
        if reason is None:
            return name, None
    return "reference", missing["triton"]


def _why_no_package(package: str, *, is_cuda: bool) -> str | None:
    if not is_cuda:
        return f"{package}'s kernels are for CUDA"
    return None if find_spec(package) is not None else f"{package} is not installed"


def _attention_maker(name: str, device: torch.device) -> MakeAttention:
    # Imported here: neither package is there on every machine.
    if name == "triton":
        from kv_pool.attention.triton_attention import TritonAttention

        return lambda page_size: TritonAttention(page_size=page_size, device=device)
    if name == "flashinfer":
        return _flashinfer_maker(device)
    return lambda page_size: ReferenceAttention(page_size=page_size, device=device)


def _flashinfer_maker(device: torch.device) -> MakeAttention:
    """All share one workspace, for they run one after another; so it is there to be counted."""
    from kv_pool.attention.flashinfer import FlashInferAttention, load_wrapper
    from kv_pool.attention.flashinfer_workspace import Workspace

    logger.info(
        "attention by flashinfer: building its kernels takes minutes, unless an earlier start has "
        "left them on the disk"
    )

    @cache
    def workspace() -> Workspace:
        return Workspace(device)

    return lambda page_size: FlashInferAttention(
        page_size=page_size,
        workspace=workspace(),
        make_wrapper=load_wrapper(),
        fallback=ReferenceAttention(page_size=page_size, device=device),
    )


def _context_kernel(*, is_cuda: bool) -> tuple[ContextKernel | None, str | None]:
    reason = _why_no_package("triton", is_cuda=is_cuda)
    if reason is not None:
        return None, reason
    from draft.context.triton_context import FusedContext

    return FusedContext(), None


def _why_no_graphs(config: EngineConfig, attention: str, *, is_cuda: bool) -> str | None:
    if config.graphs == "off":
        return "device.graphs is 'off'"
    if not is_cuda:
        return "graphs are for CUDA"
    if attention == "reference":
        return "reference attention has no fixed shapes"
    return None
