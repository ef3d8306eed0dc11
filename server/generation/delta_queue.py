"""What several answers have gained, in one line for whoever tells of it, and their silence."""

import asyncio
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Silence:
    """Nothing has happened for as long as the caller wanted to know."""


class DeltaQueue(Generic[T]):
    """A line for one reader, who takes all that is there at once.

    A reader that has waited for silence_s seconds gets a Silence. One timer watches over all of
    it: to set one for each item would cost as much as the item.
    """

    def __init__(self, *, silence_s: float | None) -> None:
        """silence_s: None is never. To be closed."""
        self._loop = asyncio.get_running_loop()
        self._items: list[T] = []
        self._error: Exception | None = None  # comes behind the items
        self._silence_s = silence_s
        self._reader: asyncio.Future[bool] | None = None  # waits; true: there is something
        self._waits_since = 0.0  # of the loop's clock
        self._timer: asyncio.TimerHandle | None = None
        if silence_s is not None:
            self._timer = self._loop.call_later(silence_s, self._look, silence_s)

    def put(self, item: T) -> None:
        """Nothing comes behind an error: a slow reader would otherwise never get to it."""
        if self._error is not None:
            return
        self._items.append(item)
        self._wake(has_news=True)

    def fail(self, error: Exception) -> None:
        """The reader is to raise this once it has taken what came before; the first one counts."""
        self._error = self._error or error
        self._wake(has_news=True)

    async def get(self) -> list[T] | Silence:
        """At least one item. Raises what it was failed with."""
        if not self._items and self._error is None and not await self._has_news():
            return Silence()
        if not self._items and self._error is not None:
            raise self._error
        items, self._items = self._items, []
        return items

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def _has_news(self) -> bool:
        """Waits for them; false is silence."""
        self._waits_since = self._loop.time()
        self._reader = self._loop.create_future()
        try:
            return await self._reader
        finally:
            self._reader = None

    def _wake(self, *, has_news: bool) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(has_news)

    def _look(self, silence_s: float) -> None:
        """Come back when the silence may be complete."""
        rest = silence_s
        if self._reader is not None:
            rest -= self._loop.time() - self._waits_since
            if rest <= 0:
                self._wake(has_news=False)
            rest = rest if rest > 0 else silence_s
        self._timer = self._loop.call_later(rest, self._look, silence_s)
