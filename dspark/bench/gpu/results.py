"""Defines the results of a GPU check: passed or failed checks, and tables of measurements."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

Row = dict[str, float | int | str | None]

# In the order in which they are worth their time.
SECTION_NAMES = (
    "triton",
    "context",
    "graphs",
    "texts",
    "writes",
    "speculation",
    "sampled",
    "backends",
    "eager",
    "plain",
    "flashinfer",
)


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


def catch_errors(name: str, find: Callable[[], Found]) -> Found:
    """Yield the results of `find`; an exception becomes a failed check."""
    try:
        yield from find()
    except Exception as error:
        what = str(error).strip().splitlines()[:1] or [""]
        yield Check(f"{name} broke off", False, f"{type(error).__name__}: {what[0]}")


def table(title: str, rows: Callable[[], Iterator[Row]]) -> Found:
    """Collect rows into a table; an exception keeps the rows before it and adds a failed check."""
    found: list[Row] = []

    def fill() -> Found:
        for row in rows():
            found.append(row)
        yield from ()

    errors = list(catch_errors(title, fill))
    if found:
        yield Table(title, found)
    yield from errors
