"""Prepares both models for serving: quantises, checks them, and chooses their kernels."""

import logging
from dataclasses import dataclass

import torch
from torch import nn

from engine.config import EngineConfig
from engine.cpu_kernels.compiling import CpuKernelsUnavailable
from engine.cpu_kernels.large_pages import move_to_large_pages
from engine.cpu_kernels.linear import use_linear_kernels
from engine.cpu_kernels.setup import CpuKernels, prepare_cpu_kernels
from engine.loading.draft import LoadedDraft
from engine.loading.draft_dtype import set_draft_dtype
from engine.loading.fused_norms import fuse_norms
from engine.loading.quantization import quantise
from engine.loading.target import LoadedTarget
from engine.model_setup.device_backend import DeviceBackend, choose_device_backend
from engine.model_setup.draft_check import check_device_backend
from engine.model_setup.memory_plan import size_text
from engine.model_setup.target_backend import TargetPath, choose_path
from engine.model_setup.target_check import probe_shapes, run_alone
from engine.runner import hf_attention as attention_hook
from kv_pool import KVLayout

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PreparedModels:
    """Holds both models and their chosen kernels, before a pool exists."""

    target: LoadedTarget
    draft: LoadedDraft | None
    tap_layers: tuple[int, ...]  # captured in the target's passes
    layout: KVLayout  # of the pool
    cpu_kernels: CpuKernels | None  # kernels for the linear layers and the draft
    reason: str | None  # why cpu_kernels is None
    path: TargetPath

    @property
    def device_backend(self) -> DeviceBackend:
        return self.path.device_backend

    @property
    def block_size(self) -> int:
        return self.draft.config.block_size if self.draft is not None else 0

    @property
    def num_slots(self) -> int:
        return self.draft.config.num_slots if self.draft is not None else 0


def prepare_models(
    config: EngineConfig,
    *,
    target: LoadedTarget,
    draft: LoadedDraft | None,
    tap_layers: tuple[int, ...] | None,
    device_backend: DeviceBackend | None,
    device: torch.device,
) -> PreparedModels:
    """Quantise the target, compute its dense reference, and choose kernels that agree with it.

    See `wire_engine` for the arguments. Raises LoadError when the target fails its self-check.
    """
    target = quantise(config, target, device)
    target.model.set_attn_implementation(attention_hook.IMPLEMENTATION)  # type: ignore[operator]
    probe = probe_shapes(target, device)
    if draft is not None:
        assert tap_layers is None, "the draft determines the taps"
        tap_layers = draft.config.tap_layers
    tap_layers = tap_layers or ()
    reference = run_alone(
        target.model, probe=probe, tap_layers=tap_layers, vocab_size=target.vocab_size
    )
    if device.type == "cuda":
        fuse_norms(target.model)
    cpu_kernels, reason = _prepare_cpu_kernels(config, target, draft, device)
    device_backend = device_backend or choose_device_backend(config, device)
    if draft is not None:
        device_backend = check_device_backend(draft.network, device_backend, device=device)
    path = choose_path(
        target,
        reference,
        tap_layers=tap_layers,
        probe=probe,
        cpu_kernels=cpu_kernels,
        reason=reason,
        device_backend=device_backend,
        device=device,
    )
    layout = KVLayout(
        page_size=config.page_size,
        device=device,
        target=probe.layers,
        draft=draft.network.kv_shapes if draft is not None else (),
    )
    return PreparedModels(target, draft, tap_layers, layout, cpu_kernels, reason, path)


def _prepare_cpu_kernels(
    config: EngineConfig,
    target: LoadedTarget,
    draft: LoadedDraft | None,
    device: torch.device,
) -> tuple[CpuKernels | None, str | None]:
    """Install CPU kernels in the linear layers of both models, or return the reason why not."""
    cpu_kernels, reason = None, None
    try:
        cpu_kernels = prepare_cpu_kernels(
            wanted=config.native_kernels != "off", dtype=target.dtype, device=device
        )
    except CpuKernelsUnavailable as error:
        reason = str(error)
    if draft is not None:
        set_draft_dtype(
            config,
            draft.network,
            target_head=target.parts.lm_head,
            cpu_kernels=cpu_kernels,
            device=device,
        )
    if cpu_kernels is None:
        return None, reason
    moved = move_to_large_pages(target.model, sharing=[draft.network] if draft is not None else [])
    use_linear_kernels(target.model, cpu_kernels.linear, cpu_kernels.int8_product)
    if draft is not None:
        moved += move_to_large_pages(draft.network, excluded=_to_be_stacked(draft))
    if moved:
        logger.info("moved %s of weights into large pages", size_text(moved))
    return cpu_kernels, None


def _to_be_stacked(draft: LoadedDraft) -> list[nn.Parameter]:
    """List the parameters that the context writer moves into its stacked storage."""
    owners = [m for a in draft.network.attentions for m in (*a.kv_projections, a.k_norm)]
    return [parameter for owner in owners for parameter in owner.parameters()]
