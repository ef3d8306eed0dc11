"""Defines the scratch page, to which padding is written."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScratchPage:
    """The pool's last page, which no sequence uses.

    Padded rows write to it, and only padding sequences read it. So its contents, NaN included,
    affect no result.
    """

    page: int
    page_size: int

    @property
    def slot(self) -> int:
        return self.page * self.page_size

    def pad_tables(
        self, tables: Sequence[Sequence[int]], length: int, size: int
    ) -> list[Sequence[int]]:
        """Pad a batch's page tables to `size` sequences; padding ones hold `length` tokens."""
        padding = [self.page] * -(-length // self.page_size)
        return [*tables, *[padding] * (size - len(tables))]
