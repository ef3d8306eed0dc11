"""Chooses a device's attention, context kernel and graph capture, with reasons for what is off."""

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
    """Holds what depends on the device. make_attention makes one attention for each model."""

    make_attention: MakeAttention
    attention: str
    attention_reason: str | None  # why no faster one is used
    attention_demanded: bool  # the config names it, so it is never replaced
    context_kernel: ContextKernel | None
    context_reason: str | None  # why context_kernel is None
    capturer: GraphCapturer | None
    graphs_reason: str | None  # why capturer is None
    fuses_layers: bool = False  # Triton kernels run the target's layers, if they agree with it

    def slower(self, model: str, problem: object, device: torch.device) -> "DeviceBackend":
        """Replace an attention that fails for a model ("target" or "draft") by the next best one.

        Reference attention comes last, and graphs cannot capture it. Raises LoadError when the
        config names the attention.
        """
        if self.attention_demanded:
            raise LoadError(
                f"attention.backend: found {self.attention}, which fails for this {model}: "
                f"{problem}; accepted: auto, reference"
            )
        logger.warning("attention by %s is not used: %s", self.attention, problem)
        reason = f"{self.attention} attention fails for this {model}"
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
    """Choose the fastest installed parts that the config allows.

    Raises LoadError when the config names an attention that is not available.
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
        fuses_layers=config.native_kernels != "off" and kernel is not None,
    )


def _attention_name(config: EngineConfig, *, is_cuda: bool) -> tuple[str, str | None]:
    """Choose the attention to try first, and the reason why no faster one is tried."""
    wanted = config.attention_backend
    if wanted == "reference":
        return wanted, "attention.backend is 'reference'"
    missing = {name: _why_no_package(name, is_cuda=is_cuda) for name in ("flashinfer", "triton")}
    if wanted != "auto":
        reason = missing[wanted]
        if reason is not None:
            raise LoadError(
                f"attention.backend: found {wanted}, but {reason}; accepted: auto, reference"
            )
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
    # Imported here: both packages are optional.
    if name == "triton":
        from kv_pool.attention.triton_attention import TritonAttention

        return lambda page_size: TritonAttention(page_size=page_size, device=device)
    if name == "flashinfer":
        return _flashinfer_maker(device)
    return lambda page_size: ReferenceAttention(page_size=page_size, device=device)


def _flashinfer_maker(device: torch.device) -> MakeAttention:
    """Share one workspace between all attentions, which run one after another.

    It exists before the pool is sized, so its memory is counted.
    """
    from kv_pool.attention.flashinfer import FlashInferAttention, load_wrapper
    from kv_pool.attention.flashinfer_workspace import Workspace

    logger.info(
        "attention by flashinfer: building its kernels takes minutes, unless an earlier start "
        "has cached them on disk"
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
