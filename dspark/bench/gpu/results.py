"""What a section of the program finds: checks and tables."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

Row = dict[str, float | int | str | None]


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    rows: list[Row]


Found = Iterator[Check | Table]


def kept(name: str, find: Callable[[], Found]) -> Found:
    """What `find` yields; where it breaks off, that is a result as well, and no more than that."""
    try:
        yield from find()
    except Exception as error:
        what = str(error).strip().splitlines()[:1] or [""]
        yield Check(f"{name} broke off", False, f"{type(error).__name__}: {what[0]}")


def table(title: str, rows: Callable[[], Iterator[Row]]) -> Found:
    """A table of its own, which loses nothing but itself where a row breaks off."""
    found: list[Row] = []

    def fill() -> Found:
        for row in rows():
            found.append(row)
        yield from ()

    broken = list(kept(title, fill))
    if found:
        yield Table(title, found)
    yield from broken
