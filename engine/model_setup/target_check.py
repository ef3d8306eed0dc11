"""Compares a target over the paged pool with its own dense attention, before it is served."""

from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from engine.errors import LoadError
from engine.loading.servable import INTERFACE_UNUSED, layer_windows, refuse_unfollowed_fields
from engine.loading.target import LoadedTarget, dense_reference
from engine.runner.batch import batch_of_rows
from engine.runner.hf_attention import UnsupportedAttention, set_windows
from engine.runner.target_model import TargetModel, run_model
from kv_pool import AttentionOptions, KVLayout, KVPool, KVShape

_NUM_TOKENS = 24
_CHUNK = 7  # tokens of one sequence in one pass
_CHEAP_WINDOW = 512  # windows up to here are exceeded by the check
_MOST_TOKENS = 2048  # of the check; layers that mask by themselves are checked up to here
CHECK_PAGE_SIZE = 4  # tokens
# Accepted difference, relative to the largest logit: the reference has the same precision, so only
# the order of rounding differs.
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 6e-2}


@dataclass(slots=True)
class ShapeProbe:
    """Replaces the pool in one pass and records the shapes that each layer would store."""

    dtype: torch.dtype  # that the pool will have
    max_len: int  # tokens of the longest sequence
    takes_positions: bool = True  # the model has a parameter position_ids
    shapes: dict[int, KVShape] = field(default_factory=dict)
    windows: dict[int, int | None] = field(default_factory=dict)
    masked: dict[int, int] = field(default_factory=dict)  # windows named by the config alone
    has_softcap: bool = False
    repeated: set[int] = field(default_factory=set)  # layers that attend more than once a pass

    @property
    def layers(self) -> tuple[KVShape, ...]:
        """The shapes in the order of the layers."""
        return tuple(self.shapes[layer] for layer in sorted(self.shapes))

    def attend(
        self,
        layer: int,
        query: Float[Tensor, "T H D"],
        keys: Float[Tensor, "T Hkv D"],
        values: Float[Tensor, "T Hkv Dv"],
        options: AttentionOptions,
    ) -> Float[Tensor, "T H Dv"]:
        if layer in self.shapes:
            self.repeated.add(layer)
        self.shapes[layer] = KVShape(keys.shape[1], keys.shape[2], values.shape[2], self.dtype)
        self.windows[layer] = options.window
        self.has_softcap |= options.softcap is not None
        return query.new_zeros(*query.shape[:2], values.shape[2])


@torch.inference_mode()
def probe_shapes(target: LoadedTarget, device: torch.device) -> ShapeProbe:
    """Run one token through the target to learn each layer's key and value shapes.

    Raises LoadError when a layer does not go through the attention interface.
    """
    takes_positions = "position_ids" in signature(target.model.forward).parameters
    probe = ShapeProbe(target.dtype, target.max_len, takes_positions)
    one = torch.zeros(1, dtype=torch.long, device=device)
    config: Any = target.model.config.get_text_config()  # type: ignore[union-attr,operator]
    kind = f"this target, a {config.model_type}, cannot be served"
    named = layer_windows(config, target.num_layers)
    try:
        set_windows(target.model, (None,) * target.num_layers)
        run_model(target.model, one, one, one, probe)
        probe.masked = {
            layer: window
            for layer, window in enumerate(named)
            if window is not None and probe.windows.get(layer) is None
        }
        set_windows(target.model, [probe.masked.get(i) for i in range(target.num_layers)])
    except (UnsupportedAttention, TypeError) as error:
        raise LoadError(f"{kind}: {error}") from error
    except Exception as error:  # a model that needs other inputs raises anything
        raise LoadError(f"{kind}: it raises {type(error).__name__}: {error}") from error
    if probe.repeated:
        raise LoadError(
            f"{kind}: layers {sorted(probe.repeated)} attend more than once in a pass, and the "
            "pool has one place for the keys and values of each"
        )
    if not probe.shapes:
        raise LoadError(f"{kind}: {INTERFACE_UNUSED}")
    refuse_unfollowed_fields(config)
    cap = getattr(config, "attn_logit_softcapping", None)
    if cap and not probe.has_softcap:
        raise LoadError(
            f"{kind}: its config names attn_logit_softcapping={cap!r}, which its layers do not "
            "pass to attention"
        )
    largest = max(probe.masked.values(), default=0)
    if _MOST_TOKENS <= largest < target.max_len:
        raise LoadError(
            f"{kind} beyond its window of {largest} tokens: its layers mask by themselves, which "
            f"cannot be checked at that length; accepted: model.max_model_len up to {largest}"
        )
    missing = sorted(set(range(target.num_layers)) - set(probe.shapes))
    if missing:
        raise LoadError(
            f"{kind}: layers {missing} keep no keys and values through "
            "transformers' attention interface (recurrent or linear attention?)"
        )
    return probe


@dataclass(frozen=True, slots=True)
class TargetCheck:
    """Holds differences to the reference, relative to its largest magnitude."""

    num_tokens: int
    logits_difference: float
    taps_difference: float


@dataclass(frozen=True, slots=True)
class DenseReference:
    """Holds the model's own outputs for a few tokens, computed without a pool."""

    ids: Int[Tensor, " T"]
    logits: Float[Tensor, "T V"]
    taps: Float[Tensor, "T A"]


@torch.inference_mode()
def run_alone(
    model: nn.Module, *, probe: ShapeProbe, tap_layers: tuple[int, ...], vocab_size: int
) -> DenseReference:
    """Run the model as transformers made it, over more tokens than its small windows hold.

    But over no more than a sequence may have: tables of positions have no rows for others.
    """
    num_tokens = _num_tokens(probe)
    device = next(model.parameters()).device
    ids = torch.arange(num_tokens, device=device) * 7919 % vocab_size
    logits, taps = dense_reference(model, tap_layers, ids[None])
    return DenseReference(ids, logits, taps)


@torch.inference_mode()
def check_target(
    reference: DenseReference,
    *,
    make_target: Callable[[KVPool], TargetModel],
    probe: ShapeProbe,
    device: torch.device,
) -> TargetCheck:
    """Compare packed, chunked, paged logits and taps with the model's own dense ones.

    make_target builds the target over a small pool of this check. Raises LoadError on a
    difference beyond rounding.
    """
    logits, taps = _run_paged(reference.ids, make_target, probe, device)
    found = TargetCheck(
        len(reference.ids),
        _relative_difference(logits, reference.logits),
        _relative_difference(taps, reference.taps),
    )
    limit = _TOLERANCE[probe.dtype]
    worst = max(found.logits_difference, found.taps_difference)
    if not worst <= limit:  # NaN fails too
        raise LoadError(
            f"this target cannot be served: its logits through the paged pool differ from its "
            f"own by {found.logits_difference:.1e} of the largest, its tapped hidden states by "
            f"{found.taps_difference:.1e}; accepted is {limit:.0e}"
            + ("" if probe.takes_positions else " (it takes no position_ids)")
        )
    return found


def _num_tokens(probe: ShapeProbe) -> int:
    cheap = [w for w in probe.windows.values() if w is not None and w <= _CHEAP_WINDOW]
    cheap += [w for w in probe.masked.values() if w < _MOST_TOKENS]
    return min(probe.max_len, max([_NUM_TOKENS, *(window + 8 for window in cheap)]))


def _run_paged(
    ids: Int[Tensor, " T"],
    make_target: Callable[[KVPool], TargetModel],
    probe: ShapeProbe,
    device: torch.device,
) -> tuple[Float[Tensor, "2 T V"], Float[Tensor, "2 T A"]]:
    """Run the same tokens as two sequences in chunks, the second one chunk later than the first.

    So every pass but the first and last packs two sequences at different positions, with
    interleaved pages. Both must give the outputs of the dense model.
    """
    num_pages = -(-len(ids) // CHECK_PAGE_SIZE)
    layout = KVLayout(page_size=CHECK_PAGE_SIZE, device=device, target=probe.layers)
    pool = KVPool(layout, num_pages=2 * num_pages)
    target = make_target(pool)
    tables = [list(range(0, 2 * num_pages, 2)), list(range(1, 2 * num_pages, 2))]

    chunks = [(at, min(at + _CHUNK, len(ids))) for at in range(0, len(ids), _CHUNK)]
    logits: list[list[Tensor]] = [[], []]
    taps: list[list[Tensor]] = [[], []]
    for turn in range(len(chunks) + 1):
        pieces = [(b, *chunks[turn - b]) for b in (0, 1) if 0 <= turn - b < len(chunks)]
        batch = batch_of_rows(
            [(ids, tables[b], start, stop) for b, start, stop in pieces],
            page_size=CHECK_PAGE_SIZE,
        )
        output = target.forward(batch)
        sizes = [stop - start for _, start, stop in pieces]
        split = zip(
            pieces,
            torch.split(output.logits, sizes),
            torch.split(output.aux_hidden, sizes),
            strict=True,
        )
        for (b, _, _), own_logits, own_taps in split:
            logits[b].append(own_logits.clone())  # a target may reuse its buffers
            taps[b].append(own_taps.clone())
    return torch.stack([torch.cat(x) for x in logits]), torch.stack([torch.cat(x) for x in taps])


def _relative_difference(found: Tensor, expected: Tensor) -> float:
    if expected.numel() == 0:
        return 0.0
    return float((found.float() - expected.float()).abs().max() / expected.float().abs().max())
