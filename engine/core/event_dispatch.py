"""Delivers events to waiting event loops, one wake-up per loop per step."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence

from engine.api import TokenEvent
from engine.errors import EngineError

logger = logging.getLogger(__name__)

Item = TokenEvent | EngineError


class Listener:
    """Passes one request's events to a callback. Belongs to the event loop that creates it."""

    def __init__(self, on_event: Callable[[TokenEvent], None], *, in_parts: bool) -> None:
        """in_parts false: on_event runs in the engine's thread for all events but the last."""
        self.loop = asyncio.get_running_loop()
        self.in_parts = in_parts
        self.on_event = on_event
        self.is_over = False  # the event with a finish has been delivered
        self._end: asyncio.Future[None] = self.loop.create_future()

    async def until_over(self) -> None:
        """Wait for the last event. Raises the engine's error, or what on_event raised."""
        await self._end

    def deliver(self, item: Item) -> None:
        """Pass on an event, or end with an error. Runs in the listener's loop."""
        if self._end.done():
            return
        if isinstance(item, EngineError):
            self._end.set_exception(item)
            return
        try:
            self.on_event(item)
        except Exception as error:
            self._end.set_exception(error)
            return
        if item.finish is not None:
            self.is_over = True
            self._end.set_result(None)

    def close(self) -> None:
        """Drop all later events."""
        if self.loop.is_closed():
            return  # the waiting task is gone with its loop
        if not self._end.cancel() and not self._end.cancelled():
            self._end.exception()  # marks it as retrieved: no task will raise it


class EventDispatcher:
    """Collects items until they are flushed. Used by the engine's thread alone."""

    def __init__(self) -> None:
        self._pending: list[tuple[Listener, Item]] = []  # oldest first

    def add(self, listener: Listener, item: Item) -> None:
        """Queue an item; events of a whole answer go to its callback at once, except the last."""
        if listener.in_parts or isinstance(item, EngineError) or item.finish is not None:
            self._pending.append((listener, item))
        else:
            listener.on_event(item)

    def flush(self) -> None:
        """Deliver everything that is queued: one call per event loop."""
        if not self._pending:
            return
        by_loop: defaultdict[asyncio.AbstractEventLoop, list[tuple[Listener, Item]]]
        by_loop = defaultdict(list)
        for listener, item in self._pending:
            by_loop[listener.loop].append((listener, item))
        self._pending = []
        for loop, batch in by_loop.items():
            try:
                loop.call_soon_threadsafe(_deliver, batch)
            except RuntimeError:
                logger.debug("a caller's event loop is closed; its events are dropped")


def _deliver(batch: Sequence[tuple[Listener, Item]]) -> None:
    """Deliver parts at once and whole answers one by one, since these take long to detokenize."""
    ends = []
    for listener, item in batch:
        if listener.in_parts:
            listener.deliver(item)
        else:
            ends.append((listener, item))
    if ends:
        _deliver_ends(ends)


def _deliver_ends(ends: Sequence[tuple[Listener, Item]]) -> None:
    """Deliver the first end; the loop runs other callbacks before the next."""
    (listener, item), *others = ends
    listener.deliver(item)
    if others:
        listener.loop.call_soon(_deliver_ends, others)
