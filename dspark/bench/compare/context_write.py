"""Measures the context write: stacked against per layer."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from draft import (
    ContextKernel,
    ContextKVMode,
    ContextKVPath,
    DSparkNetwork,
    DSparkProposer,
    LinearFunction,
)
from dspark.bench.report.statistics import Spread
from dspark.bench.workloads.interleaving import alternated
from engine.cpu_kernels.large_pages import CACHE_LINE, is_in_large_pages
from engine.platform.device_timer import seconds_of
from kv_pool import KVLayout, KVPool, ReferenceAttention

TOKEN_COUNTS = (1, 8, 64, 512)  # a plain step, a round, a batch's round, a prompt chunk

_MODES: tuple[ContextKVMode, ContextKVMode] = ("auto", "off")
_WARM_UP = 5


@dataclass(frozen=True, slots=True)
class WriteTime:
    """Microseconds of one context write, including the projection of the taps and the store."""

    num_tokens: int
    stacked_us: Spread
    per_layer_us: Spread


@dataclass(frozen=True, slots=True)
class ContextWrites:
    """Times and differences of both paths, on the same network and slots.

    path is the path of mode `auto`; if it is per_layer, `reason` explains why and both columns
    are that path. extra_bytes is the measured storage of the draft beyond its parameters.
    """

    times: tuple[WriteTime, ...]
    key_difference: float  # largest absolute difference in any layer
    value_difference: float
    path: ContextKVPath
    reason: str | None
    extra_bytes: int

    def values(self) -> dict[str, object]:
        return {
            "context_write_us": {
                str(t.num_tokens): {
                    "stacked": t.stacked_us.values(),
                    "per_layer": t.per_layer_us.values(),
                }
                for t in self.times
            },
            "max_key_difference": self.key_difference,
            "max_value_difference": self.value_difference,
            "context_kv_path": self.path,
            "context_kv_reason": self.reason,
            "stacked_extra_bytes": self.extra_bytes,
        }


def measure_context_writes(
    network: DSparkNetwork,
    *,
    max_positions: int,
    page_size: int,
    num_pages: int,
    device: torch.device,
    repetitions: int,
    linear: LinearFunction = F.linear,
    kernel: ContextKernel | None = None,
    token_counts: Sequence[int] = TOKEN_COUNTS,
    clock: Callable[[], float] = time.perf_counter,
) -> ContextWrites:
    """Time both paths in interleaved turns and compare what they write.

    Uses a separate pool with the draft's storage only, so the engine's stays valid. num_pages
    of page_size tokens hold max(token_counts). `linear` and `kernel` are those of the engine.
    """
    bench = _Bench(network, max_positions, page_size, num_pages, device, linear, kernel)
    with torch.inference_mode():
        bench.use("auto")
        path, reason = bench.proposer.context_kv_path, bench.proposer.context_kv_reason
        times = tuple(_time_both(bench, count, repetitions, clock) for count in token_counts)
        key_difference, value_difference = _differences(bench, max(token_counts))
    return ContextWrites(
        times=times,
        key_difference=key_difference,
        value_difference=value_difference,
        path=path,
        reason=reason,
        extra_bytes=bytes_beyond_parameters(network.layers),
    )


def bytes_beyond_parameters(network: torch.nn.Module) -> int:
    """Return the bytes of a module's storages that no parameter covers; 0 without copies.

    Large pages may also hold other modules' parameters and padding to a cache line; in these only
    gaps between this module's parameters count.
    """
    storages: dict[int, tuple[torch.UntypedStorage, set[tuple[int, int]]]] = {}
    for tensor in (*network.parameters(), *network.buffers()):
        storage = tensor.untyped_storage()
        start = int(tensor.storage_offset()) * tensor.itemsize
        extents = storages.setdefault(storage.data_ptr(), (storage, set()))[1]
        extents.add((start, start + tensor.numel() * tensor.itemsize))
    return sum(_uncovered(storage, sorted(extents)) for storage, extents in storages.values())


def _uncovered(storage: torch.UntypedStorage, extents: Sequence[tuple[int, int]]) -> int:
    """Return the bytes of a storage that no extent [start, end) covers."""
    is_shared = is_in_large_pages(storage)
    found, at = 0, extents[0][0] if is_shared else 0
    for start, end in extents:
        gap = start - at
        found += gap if gap > 0 and not (is_shared and gap < CACHE_LINE) else 0
        at = max(at, end)
    return found + (0 if is_shared else storage.nbytes() - at)


class _Bench:
    """A draft over a separate pool, and rows to write."""

    def __init__(
        self,
        network: DSparkNetwork,
        max_positions: int,
        page_size: int,
        num_pages: int,
        device: torch.device,
        linear: LinearFunction,
        kernel: ContextKernel | None,
    ) -> None:
        layout = KVLayout(page_size=page_size, device=device, draft=network.kv_shapes)
        self.pool = KVPool(layout, num_pages=num_pages)
        self.proposer = DSparkProposer(
            network=network,
            pool=self.pool,
            attention=ReferenceAttention(page_size=page_size, device=device),
            linear=linear,
            context_kernel=kernel,
        )
        self._max_positions = max_positions
        self._device = device
        self._aux_size = network.config.aux_size
        self._dtype = network.dtype

    def use(self, mode: ContextKVMode) -> None:
        self.proposer.set_context_kv(mode)

    def rows(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return taps, positions and scattered, distinct slots of `count` tokens."""
        generator = torch.Generator().manual_seed(count)
        assert count <= self.pool.num_slots, f"{count} tokens for {self.pool.num_slots} slots"
        aux_hidden = torch.randn(count, self._aux_size, generator=generator)
        slots = torch.randperm(self.pool.num_slots, generator=generator)[:count]
        positions = torch.arange(count) % self._max_positions
        return (
            aux_hidden.to(self._device, self._dtype),
            positions.to(self._device),
            slots.to(self._device),
        )

    def seconds_to_write(
        self, rows: tuple[Tensor, Tensor, Tensor], clock: Callable[[], float]
    ) -> float:
        return seconds_of(lambda: self.proposer.write_context(*rows), self._device, clock=clock)


def _time_both(
    bench: _Bench, count: int, repetitions: int, clock: Callable[[], float]
) -> WriteTime:
    rows = bench.rows(count)
    micros: dict[ContextKVMode, list[float]] = {mode: [] for mode in _MODES}
    for repetition in range(_WARM_UP + repetitions):
        for mode in alternated(_MODES, repetition):
            bench.use(mode)
            micros[mode].append(1e6 * bench.seconds_to_write(rows, clock))
    spreads = {mode: Spread.of(values[_WARM_UP:]) for mode, values in micros.items()}
    return WriteTime(count, spreads["auto"], spreads["off"])


def _differences(bench: _Bench, count: int) -> tuple[float, float]:
    """Return the largest |ΔK| and |ΔV| between the paths over `count` tokens and all layers."""
    rows = bench.rows(count)
    slots = rows[2]
    written: list[tuple[Tensor, Tensor]] = []
    for mode in _MODES:
        bench.use(mode)
        bench.pool.draft_keys[:, slots] = torch.nan  # shows a slot that is not written
        bench.pool.draft_values[:, slots] = torch.nan
        bench.proposer.write_context(*rows)
        keys, values = bench.pool.draft_keys[:, slots], bench.pool.draft_values[:, slots]
        assert bool(keys.isfinite().all() and values.isfinite().all()), (
            f"{mode} did not write every slot"
        )
        written.append((keys.float(), values.float()))
    (keys_a, values_a), (keys_b, values_b) = written
    return float((keys_a - keys_b).abs().max()), float((values_a - values_b).abs().max())
