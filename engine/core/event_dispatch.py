"""Events on their way from the engine's thread to those who asked: one wake-up of a loop a step."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence

from engine.api import TokenEvent
from engine.errors import EngineError

logger = logging.getLogger(__name__)

Told = TokenEvent | EngineError


class Listener:
    """Whoever waits for one request's events. Belongs to the event loop that it is made in."""

    def __init__(self, hear: Callable[[TokenEvent], None], *, in_parts: bool) -> None:
        """in_parts false: before the end `hear` is called in the engine's thread."""
        self.loop = asyncio.get_running_loop()
        self.in_parts = in_parts
        self.hear = hear
        self.is_over = False  # the event with a finish has been heard
        self._end: asyncio.Future[None] = self.loop.create_future()

    async def until_over(self) -> None:
        """Raises the engine's error, or what `hear` has raised."""
        await self._end

    def take(self, told: Told) -> None:
        if self._end.done():
            return
        if isinstance(told, EngineError):
            self._end.set_exception(told)
            return
        try:
            self.hear(told)
        except Exception as error:
            self._end.set_exception(error)
            return
        if told.finish is not None:
            self.is_over = True
            self._end.set_result(None)

    def close(self) -> None:
        """Nothing is heard any more."""
        if self.loop.is_closed():
            return  # whoever waited went with it
        if not self._end.cancel() and not self._end.cancelled():
            self._end.exception()  # nobody is left to raise it


class EventDispatcher:
    """What has happened and is not told yet. Used by the engine's thread alone."""

    def __init__(self) -> None:
        self._untold: list[tuple[Listener, Told]] = []  # in the order in which it happened

    def add(self, listener: Listener, told: Told) -> None:
        if listener.in_parts or isinstance(told, EngineError) or told.finish is not None:
            self._untold.append((listener, told))
        else:
            listener.hear(told)

    def tell(self) -> None:
        """Send it all on: one call in each loop, however many events there are."""
        if not self._untold:
            return
        by_loop: defaultdict[asyncio.AbstractEventLoop, list[tuple[Listener, Told]]]
        by_loop = defaultdict(list)
        for listener, told in self._untold:
            by_loop[listener.loop].append((listener, told))
        self._untold = []
        for loop, batch in by_loop.items():
            try:
                loop.call_soon_threadsafe(_deliver, batch)
            except RuntimeError:
                logger.debug("a caller's event loop is gone; its events are dropped")


def _deliver(batch: Sequence[tuple[Listener, Told]]) -> None:
    """Parts at once, whole answers one by one: all of an answer is a lot to turn into text."""
    ends = []
    for listener, told in batch:
        if listener.in_parts:
            listener.take(told)
        else:
            ends.append((listener, told))
    if ends:
        _deliver_ends(ends)


def _deliver_ends(ends: Sequence[tuple[Listener, Told]]) -> None:
    """The first one; before the next the loop sees to what else has happened."""
    (listener, told), *others = ends
    listener.take(told)
    if others:
        listener.loop.call_soon(_deliver_ends, others)
