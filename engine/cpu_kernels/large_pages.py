"""Moves weights into one stretch of large pages, in the order in which a pass reads them.

    file        | norm |  q  | ...      4 KiB pages, tensors at any address
    arena       |  q   |  k  | ...      2 MiB pages, tensors at multiples of 64 bytes

A pass reads every weight once, so it misses the translation cache at every page, and a load that
straddles two cache lines costs two. The parameters stay PyTorch's: only their storage is replaced,
and the old one is released. Nothing is held twice.
"""

import mmap
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

LARGE_PAGE = 2 << 20
CACHE_LINE = 64  # bytes, as many as the widest vector has


def move_to_large_pages(
    module: nn.Module,
    *,
    sharing: Sequence[nn.Module] = (),
    excluded: Iterable[nn.Parameter] = (),
) -> int:
    """Move the module's parameters; return the bytes moved, 0 if they are there already.

    sharing: modules that use some of the same storages (a draft its target's head); they follow.
    `excluded` and parameters that are not plain tensors on the CPU are not moved.
    """
    staying = {p.untyped_storage().data_ptr() for p in excluded}
    parameters = [p for m in (module, *sharing) for p in m.parameters()]
    storages = {
        p.untyped_storage().data_ptr(): p.untyped_storage()
        for p in module.parameters()
        if _is_plain(p)
        and not is_in_large_pages(p.untyped_storage())
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
    """Allocate at least `size` bytes: whole large pages, aligned to one."""
    size = -(-size // LARGE_PAGE) * LARGE_PAGE
    memory = mmap.mmap(-1, size + LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    start = -np.frombuffer(memory, dtype=np.uint8).ctypes.data % LARGE_PAGE
    return torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=start)


def is_in_large_pages(storage: torch.UntypedStorage) -> bool:
    """Whether a storage is an arena of this module: no other allocator aligns both ends so."""
    return storage.data_ptr() % LARGE_PAGE == 0 and storage.nbytes() % LARGE_PAGE == 0


def _is_plain(parameter: nn.Parameter) -> bool:
    return type(parameter) is nn.Parameter and parameter.device.type == "cpu"
