"""Where padding goes: a page behind all others, which no sequence ever has."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScratchPage:
    """The pool's last page. Whatever a padded row writes or reads, it is there."""

    page: int
    page_size: int

    @property
    def slot(self) -> int:
        return self.page * self.page_size

    def cover(self, table: Sequence[int], *, own_len: int, length: int) -> list[int]:
        """A page table for `length` tokens, of which the first own_len lie in `table`.

        The page that holds own_len's last token is the sequence's own; later ones are scratch.
        """
        own = -(-own_len // self.page_size)
        missing = -(-length // self.page_size) - own
        return [*table[:own], *[self.page] * missing]
