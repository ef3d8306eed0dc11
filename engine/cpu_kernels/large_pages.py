"""Weights in one stretch of large pages, in the order in which a pass reads them.

    file        | norm |  q  | ...      4 KiB pages, each tensor wherever the header's end put it
    arena       |  q   |  k  | ...      2 MiB pages, each tensor at a multiple of 64 bytes

A pass reads every weight once, so it misses the translation cache at every page, and loads that
straddle two cache lines cost two. The parameters stay PyTorch's own: only their storage is
another one, and the old one is released. Nothing is held twice.
"""

import mmap
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

LARGE_PAGE = 2 << 20
CACHE_LINE = 64  # bytes, as many as the widest vector has


def settle(
    module: nn.Module,
    *,
    borrowers: Sequence[nn.Module] = (),
    besides: Iterable[nn.Parameter] = (),
) -> int:
    """Move the module's parameters; how many bytes have moved, 0 if they lie well already.

    borrowers hold some of the same storages (a draft its target's head), and follow. `besides` and
    parameters that are not plain tensors on the CPU stay where they are.
    """
    staying = {p.untyped_storage().data_ptr() for p in besides}
    parameters = [p for m in (module, *borrowers) for p in m.parameters()]
    storages = {
        p.untyped_storage().data_ptr(): p.untyped_storage()
        for p in module.parameters()
        if _is_plain(p)
        and not is_settled(p.untyped_storage())
        and p.untyped_storage().data_ptr() not in staying
    }
    places, size = {}, 0
    for address, storage in storages.items():
        places[address] = size
        size += -(-storage.nbytes() // CACHE_LINE) * CACHE_LINE
    if size == 0:
        return 0
    arena = _large_pages(size)
    for address, storage in storages.items():
        old = torch.empty(0, dtype=torch.uint8).set_(storage)
        arena[places[address] : places[address] + storage.nbytes()] = old
    for parameter in parameters:
        place = places.get(parameter.untyped_storage().data_ptr())
        if place is not None:
            parameter.data = _view(arena, place, parameter)
    return size


def _view(arena: Tensor, place: int, like: Tensor) -> Tensor:
    itemsize = like.dtype.itemsize
    offset = place // itemsize + like.storage_offset()
    return arena.view(like.dtype).as_strided(like.shape, like.stride(), offset)


def _large_pages(size: int) -> Tensor:
    """At least size bytes, a whole number of large pages that begins with one."""
    size = -(-size // LARGE_PAGE) * LARGE_PAGE
    memory = mmap.mmap(-1, size + LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    start = -np.frombuffer(memory, dtype=np.uint8).ctypes.data % LARGE_PAGE
    return torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=start)


def is_settled(storage: torch.UntypedStorage) -> bool:
    """Whether this is (one of) our arenas: no other allocator begins and ends like that."""
    return storage.data_ptr() % LARGE_PAGE == 0 and storage.nbytes() % LARGE_PAGE == 0


def _is_plain(parameter: nn.Parameter) -> bool:
    return type(parameter) is nn.Parameter and parameter.device.type == "cpu"
