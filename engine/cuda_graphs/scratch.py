"""Where padding goes: a page behind all others, which no sequence ever has."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScratchPage:
    """The pool's last page. Padded rows write to it, and only sequences that are not there read it.

    So whatever comes to lie there, NaN included, reaches nobody.
    """

    page: int
    page_size: int

    @property
    def slot(self) -> int:
        return self.page * self.page_size

    def table(self, length: int) -> list[int]:
        """A page table for `length` tokens of a sequence that is not there."""
        return [self.page] * -(-length // self.page_size)
