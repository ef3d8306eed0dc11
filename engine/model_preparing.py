"""Both models as they will run: checked against themselves, with the fastest paths that agree."""

import logging
from dataclasses import dataclass

import torch
from torch import nn

from engine import attention_hook
from engine.acceleration import Acceleration, choose_acceleration
from engine.config import EngineConfig
from engine.draft_check import check_acceleration
from engine.draft_loading import LoadedDraft
from engine.draft_precision import choose_precision
from engine.fused_norms import fuse_norms
from engine.memory import size_text
from engine.native.compiling import NativeUnavailable
from engine.native.large_pages import settle
from engine.native.linear import speed_up
from engine.native.setup import Native, prepare_native
from engine.quantization import quantise
from engine.self_check import ShapeProbe, ask_alone, probe_shapes
from engine.target_building import TargetPath, choose_path
from engine.target_loading import LoadedTarget

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PreparedModels:
    """What is known of both models before there is a pool."""

    target: LoadedTarget
    draft: LoadedDraft | None
    tap_layers: tuple[int, ...]  # of the target's passes
    probe: ShapeProbe
    native: Native | None  # kernels for the linear layers and the draft
    reason: str | None  # why native is None
    path: TargetPath

    @property
    def acceleration(self) -> Acceleration:
        return self.path.acceleration

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
    acceleration: Acceleration | None,
    device: torch.device,
) -> PreparedModels:
    """Quantise, ask the target for reference answers, and choose paths that give the same.

    See `wire_engine` for the arguments. Raises LoadError when the target fails its self-check.
    """
    target = quantise(config, target, device)
    target.model.set_attn_implementation(attention_hook.IMPLEMENTATION)  # type: ignore[operator]
    probe = probe_shapes(target.model, num_layers=target.num_layers, device=device)
    if draft is not None:
        assert tap_layers is None, "a draft reads its own taps"
        tap_layers = draft.config.tap_layers
    tap_layers = tap_layers or ()
    reference = ask_alone(
        target.model, probe=probe, tap_layers=tap_layers, vocab_size=target.vocab_size
    )
    if device.type == "cuda":
        fuse_norms(target.model)
    native, reason = _prepare_native(config, target, draft, device)
    acceleration = acceleration or choose_acceleration(config, device)
    if draft is not None:
        acceleration = check_acceleration(draft.network, acceleration, device=device)
    path = choose_path(
        target,
        reference,
        tap_layers=tap_layers,
        probe=probe,
        native=native,
        reason=reason,
        acceleration=acceleration,
        device=device,
    )
    return PreparedModels(target, draft, tap_layers, probe, native, reason, path)


def _prepare_native(
    config: EngineConfig,
    target: LoadedTarget,
    draft: LoadedDraft | None,
    device: torch.device,
) -> tuple[Native | None, str | None]:
    """Native kernels for both models' linear layers, or the reason why not."""
    native, reason = None, None
    try:
        native = prepare_native(
            wanted=config.native_kernels != "off", dtype=target.dtype, device=device
        )
    except NativeUnavailable as error:
        reason = str(error)
    if draft is not None:
        choose_precision(config, draft.network, native=native, device=device)
    if native is None:
        return None, reason
    moved = settle(target.model, borrowers=[draft.network] if draft is not None else [])
    speed_up(target.model, native.linear, native.int8_product)
    if draft is not None:
        moved += settle(draft.network, besides=_to_be_stacked(draft))
    if moved:
        logger.info("moved %s of weights into large pages; none is held twice", size_text(moved))
    return native, None


def _to_be_stacked(draft: LoadedDraft) -> list[nn.Parameter]:
    """What the context writer gathers in a storage of its own: moved before, it would lie twice."""
    owners = [m for a in draft.network.attentions for m in (a.k_proj, a.v_proj, a.k_norm)]
    return [parameter for owner in owners for parameter in owner.parameters()]
