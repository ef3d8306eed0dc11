"""Implements paged attention with the project's Triton kernels, eagerly and in CUDA graphs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
from jaxtyping import Float, Int, Int32
from torch import Tensor

from kv_pool.attention.backend import AttentionOptions
from kv_pool.attention.paging import first_columns, page_rows
from kv_pool.attention.transfer import overwrite, to_device
from kv_pool.attention.triton_kernels import Division, launch
from kv_pool.attention.triton_schedule import (
    IntTable,
    Schedule,
    TileShape,
    most_parts,
    padded,
    schedule,
    tile_table,
)

_H100_SHARED_BYTES = 232_448  # assumed where the kernels are interpreted
_H200_MULTIPROCESSORS = 132  # likewise
_PROGRAMS_PER_MULTIPROCESSOR = 2


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """The limits of a device that tiles and splits depend on."""

    shared_bytes: int  # shared memory of one program
    multiprocessors: int

    @classmethod
    def of(cls, device: torch.device) -> "DeviceLimits":
        if device.type != "cuda":
            return cls(_H100_SHARED_BYTES, _H200_MULTIPROCESSORS)
        index = torch.cuda.current_device() if device.index is None else device.index
        found = triton.runtime.driver.active.utils.get_device_properties(index)
        return cls(found["max_shared_mem"], found["multiprocessor_count"])


class TritonAttention:
    """Implements AttentionBackend and FixedBackend, with all options."""

    name = "triton"
    fixed_plan_bytes = 0
    follows_device_lens = True

    def __init__(
        self, *, page_size: int, device: torch.device, limits: DeviceLimits | None = None
    ) -> None:
        """limits: None reads them from the device."""
        self._page_size = page_size
        self._device = device
        self._limits = limits or DeviceLimits.of(device)

    def plan(
        self,
        *,
        query_lens: Sequence[int],
        kv_lens: Sequence[int],
        page_tables: Sequence[Sequence[int]],
        causal: bool,
    ) -> "TritonPlan":
        plan = TritonPlan(
            query_lens=query_lens,
            max_pages=max(-(-length // self._page_size) for length in kv_lens),
            page_size=self._page_size,
            causal=causal,
            is_fixed=False,
            device=self._device,
            limits=self._limits,
        )
        plan.update(kv_lens=kv_lens, page_tables=page_tables)
        return plan

    def fixed_plan(
        self, *, num_sequences: int, query_len: int, max_pages: int, causal: bool
    ) -> "TritonPlan":
        return TritonPlan(
            query_lens=[query_len] * num_sequences,
            max_pages=max_pages,
            page_size=self._page_size,
            causal=causal,
            is_fixed=True,
            device=self._device,
            limits=self._limits,
        )


@dataclass(frozen=True, slots=True)
class _Kind:
    """Identifies a kind of layer: everything that its division depends on except lengths."""

    group: int  # query heads of a KV head
    num_kv_heads: int
    key_dim: int
    value_dim: int
    itemsize: int
    window: int | None


@dataclass(frozen=True, slots=True)
class _Divided:
    """The tiles of a kind of layer on both sides, and the division of their keys."""

    tiles: IntTable
    num_programs: int  # for each KV head
    division: Division


class TritonPlan:
    """Holds page tables as a rectangle on the device, and the programs of each kind of layer."""

    def __init__(
        self,
        *,
        query_lens: Sequence[int],
        max_pages: int,
        page_size: int,
        causal: bool,
        is_fixed: bool,
        device: torch.device,
        limits: DeviceLimits,
    ) -> None:
        """is_fixed: tables have the same size and address after every update."""
        self._query_lens = list(query_lens)
        self._page_size = page_size
        self._causal = causal
        self._is_fixed = is_fixed
        self._device = device
        self._limits = limits
        starts = np.concatenate([[0], np.cumsum(self._query_lens)]).astype(np.int32)
        self._starts = to_device(starts, device)
        num_sequences = len(self._query_lens)
        self._pages = torch.zeros(num_sequences, max_pages, dtype=torch.int32, device=device)
        self._kv_lens = torch.ones(num_sequences, dtype=torch.int32, device=device)
        self._host_lens: Sequence[int] = self._query_lens
        self._least_lens: Sequence[int] = self._query_lens
        self._divided: dict[_Kind, _Divided] = {}

    def update(
        self,
        *,
        kv_lens: Sequence[int],
        page_tables: Sequence[Sequence[int]],
        least_kv_lens: Sequence[int] | None = None,
    ) -> None:
        """See FixedPlan.update."""
        least = kv_lens if least_kv_lens is None else least_kv_lens
        for query_len, kv_len, least_len in zip(self._query_lens, kv_lens, least, strict=True):
            assert 1 <= query_len <= least_len, f"{query_len} queries over {least_len} keys"
            assert least_len <= kv_len, f"at least {least_len} keys and at most {kv_len}"
        rows = page_rows(kv_lens=kv_lens, page_tables=page_tables, page_size=self._page_size)
        parts = [
            (first_columns(self._pages, rows), rows),
            (self._kv_lens, np.asarray(kv_lens, dtype=np.int32)),
        ]
        self._host_lens, self._least_lens = kv_lens, least
        for kind, divided in self._divided.items():
            found = self._schedule(
                kind, divided.tiles, divided.division.shape, divided.num_programs
            )
            division = divided.division
            parts += [
                (division.items, padded(found.items, len(division.items))),
                (division.merges, padded(found.merges, len(division.merges))),
            ]
        overwrite(parts)

    def set_kv_lens(self, kv_lens: Int[Tensor, "B"]) -> None:
        """See FixedPlan.set_kv_lens. The kernels ignore keys past these lengths."""
        self._kv_lens[: len(kv_lens)] = kv_lens

    def attend(
        self,
        query: Float[Tensor, "T H D"],
        keys: Float[Tensor, "S Hkv D"],
        values: Float[Tensor, "S Hkv Dv"],
        options: AttentionOptions,
    ) -> Float[Tensor, "T H Dv"]:
        """See AttentionPlan.attend."""
        kind = _Kind(
            group=query.shape[1] // keys.shape[1],
            num_kv_heads=keys.shape[1],
            key_dim=keys.shape[2],
            value_dim=values.shape[2],
            itemsize=query.dtype.itemsize,
            window=options.window,
        )
        if kind not in self._divided:
            self._divided[kind] = self._divide(kind)
        return launch(
            query,
            keys,
            values,
            division=self._divided[kind].division,
            starts=self._starts,
            pages=self._pages,
            kv_lens=self._kv_lens,
            page_size=self._page_size,
            causal=self._causal,
            options=options,
        )

    def _divide(self, kind: _Kind) -> _Divided:
        shape = TileShape.of(
            group=kind.group,
            longest=max(self._query_lens),
            key_dim=max(16, triton.next_power_of_2(kind.key_dim)),
            value_dim=max(16, triton.next_power_of_2(kind.value_dim)),
            itemsize=kind.itemsize,
            shared_bytes=self._limits.shared_bytes,
        )
        tiles = tile_table(self._query_lens, shape.queries)
        enough = _PROGRAMS_PER_MULTIPROCESSOR * self._limits.multiprocessors
        num_programs = max(1, enough // kind.num_kv_heads)
        found = self._schedule(kind, tiles, shape, num_programs)
        sizes = len(found.items), len(found.merges), found.num_parts
        if self._is_fixed:
            sizes = most_parts(tiles.shape[1], num_programs)
        division = Division(
            shape=shape,
            tiles=to_device(tiles, self._device),
            items=self._table(found.items, sizes[0]),
            merges=self._table(found.merges, sizes[1]),
            num_parts=sizes[2],
        )
        return _Divided(tiles, num_programs, division)

    def _table(self, rows: IntTable, count: int) -> Int32[Tensor, "C X"]:
        return to_device(padded(rows, count), self._device)

    def _schedule(
        self, kind: _Kind, tiles: IntTable, shape: TileShape, num_programs: int
    ) -> Schedule:
        return schedule(
            tiles,
            queries=shape.queries,
            query_lens=self._query_lens,
            kv_lens=self._host_lens,
            least_kv_lens=self._least_lens,
            causal=self._causal,
            window=kind.window,
            num_programs=num_programs,
        )
