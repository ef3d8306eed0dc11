"""Chooses how the target runs: the fastest path that agrees with its dense attention."""

import copy
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from engine.cpu_kernels.compiling import CpuKernelsUnavailable
from engine.cpu_kernels.decoder import CpuDecoder, require_supported
from engine.cpu_kernels.setup import DECODER_ROWS, CpuKernels
from engine.errors import LoadError
from engine.loading.target import LoadedTarget
from engine.model_setup.device_backend import DeviceBackend
from engine.model_setup.target_check import (
    DenseReference,
    ShapeProbe,
    TargetCheck,
    check_target,
    run_alone,
)
from engine.platform.host import available_memory_bytes
from engine.runner.target_model import PackedDecoder, TargetModel
from kv_pool import AttentionBackend, KVPool

if TYPE_CHECKING:
    from engine.fused_layers.fused_decoder import FusedLayers

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TargetPath:
    """Names what runs the target's steps, and why nothing faster does."""

    check: TargetCheck
    device_backend: DeviceBackend  # with the attention that passed the check
    cpu_kernels: CpuKernels | None  # None: they run no step
    reason: str | None  # why transformers runs every step; None if it does not
    fused: "FusedLayers | None" = None  # Triton kernels that run every step

    @property
    def name(self) -> str:
        if self.fused is not None:
            return "triton"
        return "native" if self.cpu_kernels is not None else "transformers"


def choose_path(
    target: LoadedTarget,
    reference: DenseReference,
    *,
    tap_layers: tuple[int, ...],
    probe: ShapeProbe,
    cpu_kernels: CpuKernels | None,
    reason: str | None,
    device_backend: DeviceBackend,
    device: torch.device,
) -> TargetPath:
    """Check transformers' path with the device's attention, then the CPU decoder if there is one.

    An attention chosen by `auto` that fails is replaced by a slower one, and a CPU decoder that
    fails is not used. Raises LoadError when reference attention fails, or an attention that the
    config names.
    """

    def check(
        chosen: DeviceBackend,
        with_kernels: CpuKernels | None,
        expected: DenseReference = reference,
        fused: "FusedLayers | None" = None,
    ) -> TargetCheck:
        return check_target(
            expected,
            make_target=lambda pool: make_target(
                target,
                pool,
                tap_layers=tap_layers,
                cpu_kernels=with_kernels,
                fused=fused,
                attention=chosen.make_attention(pool.page_size),
            ),
            probe=probe,
            device=device,
        )

    by_transformers = None
    while by_transformers is None:
        try:
            by_transformers = check(device_backend, None)
        except Exception as error:  # kernel compilers raise any type
            if device_backend.attention == "reference":
                raise
            device_backend = device_backend.slower("target", error, device)
    if device_backend.fuses_layers:
        fused, reason = _fused_layers(target)
        if fused is not None:
            try:
                by_kernels = check(device_backend, None, fused=fused)
                return TargetPath(by_kernels, device_backend, None, None, fused)
            except Exception as error:  # kernel compilers raise any type
                logger.warning("fused layers are not used: %s", error)
                reason = "fused layers fail or do not agree with the model"
    if cpu_kernels is None:
        return TargetPath(by_transformers, device_backend, None, reason)
    try:
        require_supported(target.model, cpu_kernels.library)
        in_float32 = _in_float32(target, reference, tap_layers=tap_layers, probe=probe)
        return TargetPath(
            check(device_backend, cpu_kernels, in_float32), device_backend, cpu_kernels, None
        )
    except CpuKernelsUnavailable as error:
        return TargetPath(by_transformers, device_backend, None, str(error))
    except LoadError as error:
        logger.warning("the CPU decoder does not agree with the model: %s", error)
        reason = "it does not agree with the model"
        return TargetPath(by_transformers, device_backend, None, reason)


def _fused_layers(target: LoadedTarget) -> "tuple[FusedLayers | None, str | None]":
    """Prepare the target's layers for Triton kernels, or return the reason why not."""
    # Imported here: Triton is optional.
    from engine.fused_layers.fused_decoder import FusedLayers, FusedLayersUnavailable

    try:
        return FusedLayers(target.model, max_len=target.max_len), None
    except FusedLayersUnavailable as error:
        return None, str(error)


def _in_float32(
    target: LoadedTarget,
    reference: DenseReference,
    *,
    tap_layers: tuple[int, ...],
    probe: ShapeProbe,
) -> DenseReference:
    """Compute the reference of the CPU decoder, which computes in float32 from any weights.

    In lower precision PyTorch rounds after every operation, and its error can exceed a tolerance
    that still detects mistakes. Raises CpuKernelsUnavailable without memory for a float32 copy.
    """
    if target.dtype == torch.float32:
        return reference
    needed = sum(6 * p.numel() for p in target.model.parameters())  # a copy, and one in float32
    available = available_memory_bytes()
    if available is not None and needed > available:
        raise CpuKernelsUnavailable("there is too little memory to check it against float32")
    model = copy.deepcopy(target.model).float()
    return run_alone(model, probe=probe, tap_layers=tap_layers, vocab_size=target.vocab_size)


def make_target(
    target: LoadedTarget,
    pool: KVPool,
    *,
    tap_layers: tuple[int, ...],
    cpu_kernels: CpuKernels | None,
    attention: AttentionBackend,
    fused: "FusedLayers | None" = None,
) -> TargetModel:
    """Build the target over a pool. Raises CpuKernelsUnavailable if they cannot run this model."""
    decoder: PackedDecoder | None = None
    if fused is not None:
        from engine.fused_layers.fused_decoder import FusedDecoder

        decoder = FusedDecoder(fused, pool=pool, attention=attention, tap_layers=tap_layers)
    elif cpu_kernels is not None:
        decoder = CpuDecoder(
            kernels=cpu_kernels.library,
            model=target.model,
            pool=pool,
            tap_layers=tap_layers,
            max_len=target.max_len,
            max_rows=DECODER_ROWS,
            num_threads=cpu_kernels.num_threads,
        )
    return TargetModel(
        model=target.model,
        tap_layers=tap_layers,
        pool=pool,
        attention=attention,
        vocab_size=target.vocab_size,
        packed_decoder=decoder,
    )
