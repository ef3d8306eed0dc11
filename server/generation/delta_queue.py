"""Queues deltas of several completions for one reader; signals keep-alive."""

import asyncio
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """No item has arrived for keepalive_s seconds."""


class DeltaQueue(Generic[T]):
    """A queue whose one reader takes all items at once.

    A reader that has waited for keepalive_s seconds gets a KeepAlive. One timer serves the whole
    queue, because a timer per item would cost as much as the item.
    """

    def __init__(self, *, keepalive_s: float | None) -> None:
        """keepalive_s: None sends no KeepAlive. The caller closes the queue."""
        self._loop = asyncio.get_running_loop()
        self._items: list[T] = []
        self._error: Exception | None = None  # raised after the items
        self._keepalive_s = keepalive_s
        self._waiter: asyncio.Future[bool] | None = None  # result: whether there is an item
        self._waiting_since = 0.0  # time of the event loop
        self._timer: asyncio.TimerHandle | None = None
        if keepalive_s is not None:
            self._timer = self._loop.call_later(keepalive_s, self._check_idle, keepalive_s)

    def put(self, item: T) -> None:
        """Add an item. After an error items are dropped, so that a slow reader gets the error."""
        if self._error is not None:
            return
        self._items.append(item)
        self._notify(has_item=True)

    def fail(self, error: Exception) -> None:
        """Make `get` raise the error after the items before it. The first error counts."""
        self._error = self._error or error
        self._notify(has_item=True)

    async def get(self) -> list[T] | KeepAlive:
        """Return all items, at least one, or a KeepAlive. Raises the error given to `fail`."""
        if not self._items and self._error is None and not await self._wait():
            return KeepAlive()
        if not self._items and self._error is not None:
            raise self._error
        items, self._items = self._items, []
        return items

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def _wait(self) -> bool:
        """Wait for an item or an error; False after keepalive_s without one."""
        self._waiting_since = self._loop.time()
        self._waiter = self._loop.create_future()
        try:
            return await self._waiter
        finally:
            self._waiter = None

    def _notify(self, *, has_item: bool) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(has_item)

    def _check_idle(self, keepalive_s: float) -> None:
        """End the wait if it has lasted keepalive_s; set the timer for the next check."""
        remaining = keepalive_s
        if self._waiter is not None:
            remaining -= self._loop.time() - self._waiting_since
            if remaining <= 0:
                self._notify(has_item=False)
                remaining = keepalive_s
        self._timer = self._loop.call_later(remaining, self._check_idle, keepalive_s)
