"""Passes a batch's page tables to the kernels without expanding them into slots."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.arrays import IntArray


class PageTablePointers:
    """Holds the address of each sequence's page table, int32 per page, as kernels read it.

    A table that is already int32 in one piece of memory is not copied. The addresses are valid
    while this object lives and no table changes its length.
    """

    def __init__(
        self, page_tables: Sequence[Sequence[int]], kv_lens: IntArray, *, page_size: int
    ) -> None:
        """kv_lens: tokens [B]. Raises AssertionError when a table has too few pages for them."""
        self._tables: list[npt.NDArray[np.int32]] = []
        for table, kv_len in zip(page_tables, kv_lens.tolist(), strict=True):
            assert len(table) * page_size >= kv_len, f"{len(table)} pages for {kv_len} keys"
            self._tables.append(np.asarray(table, dtype=np.int32))
        self._addresses = np.array([table.ctypes.data for table in self._tables], dtype=np.int64)

    @property
    def address(self) -> int:
        """The address of the B pointers."""
        return self._addresses.ctypes.data
