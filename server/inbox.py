"""What several answers have gained, in one line for whoever tells of it, and their silence."""

import asyncio
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Silence:
    """Nothing has happened for as long as the caller wanted to know."""


class Inbox(Generic[T]):
    """A queue for one reader. A reader that has waited for silence_s seconds gets a Silence.

    One timer watches over all of it: to set one for each item would cost as much as the item.
    """

    def __init__(self, *, silence_s: float | None) -> None:
        """silence_s: None is never. To be closed."""
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[T | Silence] = asyncio.Queue()
        self._silence_s = silence_s
        self._waits_since: float | None = None  # of the loop's clock; None: the reader is busy
        self._timer: asyncio.TimerHandle | None = None
        if silence_s is not None:
            self._timer = self._loop.call_later(silence_s, self._look, silence_s)

    def put(self, item: T) -> None:
        self._items.put_nowait(item)

    async def get(self) -> T | Silence:
        self._waits_since = self._loop.time()
        try:
            return await self._items.get()
        finally:
            self._waits_since = None

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self, silence_s: float) -> None:
        """Come back when the silence may be complete."""
        rest = silence_s
        if self._waits_since is not None:
            rest -= self._loop.time() - self._waits_since
            if rest <= 0 and self._items.empty():
                self._items.put_nowait(Silence())
            rest = rest if rest > 0 else silence_s
        self._timer = self._loop.call_later(rest, self._look, silence_s)
