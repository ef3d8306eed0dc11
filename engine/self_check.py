"""Before a target is served: does it say the same through the paged pool as by itself?"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn

from engine.attention_hook import IMPLEMENTATION, UnsupportedAttention
from engine.errors import LoadError
from engine.taps import Taps
from engine.target import PagedAttention, run_model
from kv_pool import AttentionBackend, KVPool, KVShape

_NUM_TOKENS = 24
_CHEAP_WINDOW = 512  # windows up to here are exceeded by the check
_PAGE_SIZE = 4
# Largest accepted difference, relative to the largest logit; the reference is computed in the
# same precision, so this is rounding in another order and not error.
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 6e-2}


@dataclass(slots=True)
class ShapeProbe:
    """Stands where the pool will stand, and notes what each layer would store."""

    shapes: dict[int, KVShape] = field(default_factory=dict)
    windows: dict[int, int | None] = field(default_factory=dict)

    def attend(
        self,
        layer: int,
        query: Float[Tensor, "T H D"],
        keys: Float[Tensor, "T Hkv D"],
        values: Float[Tensor, "T Hkv Dv"],
        *,
        scale: float,
        window: int | None,
        softcap: float | None,
        sinks: Tensor | None,
    ) -> Float[Tensor, "T H Dv"]:
        self.shapes[layer] = KVShape(keys.shape[1], keys.shape[2], values.shape[2])
        self.windows[layer] = window
        return query.new_zeros(*query.shape[:2], values.shape[2])


@torch.inference_mode()
def probe_shapes(model: nn.Module, *, num_layers: int, device: torch.device) -> ShapeProbe:
    """Run one token through the model to learn each layer's key and value shapes.

    Raises LoadError when a layer does not go through the attention interface.
    """
    probe = ShapeProbe()
    one = torch.zeros(1, dtype=torch.long, device=device)
    try:
        run_model(model, one, one, one, probe)
    except (UnsupportedAttention, TypeError) as error:
        raise LoadError(f"this target cannot be served: {error}") from error
    missing = sorted(set(range(num_layers)) - set(probe.shapes))
    if missing:
        raise LoadError(
            f"this target cannot be served: layers {missing} keep no keys and values through "
            "transformers' attention interface (recurrent or linear attention?)"
        )
    return probe


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """What the check found: differences relative to the largest magnitude of the reference."""

    num_tokens: int
    logits_difference: float
    taps_difference: float


@torch.inference_mode()
def check_target(
    model: nn.Module,
    *,
    probe: ShapeProbe,
    reference: Callable[[Tensor], tuple[Tensor, Tensor]],
    make_attention: Callable[[int], AttentionBackend],
    taps: Taps,
    vocab_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> SelfCheck:
    """Compare packed, chunked, paged logits and taps with the model's own dense ones.

    reference takes ids [1, T] and gives the model's own logits [T, V] and taps [T, A];
    make_attention takes a page size. Raises LoadError on a difference beyond rounding.
    """
    num_tokens = _num_tokens(probe)
    ids = torch.arange(num_tokens, device=device) * 7919 % vocab_size
    expected_logits, expected_taps = reference(ids[None])
    assert model.config._attn_implementation == IMPLEMENTATION  # type: ignore[union-attr]
    logits, tapped = _run_paged(model, ids, probe, make_attention, taps, dtype, device)
    found = SelfCheck(
        num_tokens,
        _relative_difference(logits, expected_logits),
        _relative_difference(tapped, expected_taps),
    )
    limit = _TOLERANCE[dtype]
    worst = max(found.logits_difference, found.taps_difference)
    if not worst <= limit:  # NaN fails too
        raise LoadError(
            f"this target cannot be served: its logits through the paged pool differ from its "
            f"own by {found.logits_difference:.1e} of the largest, its tapped hidden states by "
            f"{found.taps_difference:.1e}; accepted is {limit:.0e}"
        )
    return found


def _num_tokens(probe: ShapeProbe) -> int:
    cheap = [w for w in probe.windows.values() if w is not None and w <= _CHEAP_WINDOW]
    return max(_NUM_TOKENS, *(w + 8 for w in cheap)) if cheap else _NUM_TOKENS


def _run_paged(
    model: nn.Module,
    ids: Tensor,
    probe: ShapeProbe,
    make_attention: Callable[[int], AttentionBackend],
    taps: Taps,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """The same tokens as two sequences in one pool: one in two chunks, one beside its second.

    Both must say what the dense model says; the second sequence's pages lie between.
    """
    num_tokens, split = len(ids), len(ids) // 3
    num_pages = -(-num_tokens // _PAGE_SIZE)
    pool = KVPool(
        num_pages=2 * num_pages,
        page_size=_PAGE_SIZE,
        target_shapes=[probe.shapes[layer] for layer in sorted(probe.shapes)],
        target_dtype=dtype,
        device=device,
    )
    attention = make_attention(_PAGE_SIZE)
    tables = [list(range(0, 2 * num_pages, 2)), list(range(1, 2 * num_pages, 2))]
    offsets = torch.arange(num_tokens, device=device)
    slots = [(offsets // _PAGE_SIZE * 2 + b) * _PAGE_SIZE + offsets % _PAGE_SIZE for b in (0, 1)]

    def run(rows: list[tuple[int, int, int]]) -> tuple[Tensor, Tensor]:
        """rows: (sequence, start, stop) of each packed piece."""
        plan = attention.plan(
            query_lens=[stop - start for _, start, stop in rows],
            kv_lens=[stop for _, _, stop in rows],
            page_tables=[tables[b] for b, _, _ in rows],
            causal=True,
        )
        positions = torch.cat([offsets[start:stop] for _, start, stop in rows])
        where = torch.cat([slots[b][start:stop] for b, start, stop in rows])
        every = torch.arange(len(positions), device=device)
        logits = run_model(
            model, ids[positions], positions, every, PagedAttention(pool, plan, where)
        )
        return logits, taps.take()

    first, first_taps = run([(0, 0, split)])
    rest, rest_taps = run([(0, split, num_tokens), (1, 0, num_tokens)])
    behind = num_tokens - split
    chunked = torch.cat([first, rest[:behind]])
    logits = torch.stack([chunked, rest[behind:]])
    if first_taps.numel() == 0:
        return logits, first_taps
    tapped = torch.stack([torch.cat([first_taps, rest_taps[:behind]]), rest_taps[behind:]])
    return logits, tapped


def _relative_difference(found: Tensor, expected: Tensor) -> float:
    if expected.numel() == 0:
        return 0.0
    return float((found.float() - expected.float()).abs().max() / expected.float().abs().max())
