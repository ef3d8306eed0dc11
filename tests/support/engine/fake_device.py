"""An engine core without models, for the worker around it."""

import itertools
from collections.abc import Callable
from typing import Any

from engine import Finish, FinishReason, Request, TokenEvent
from engine.api import SpeculationStats

ENDED = Finish(
    reason=FinishReason.LENGTH,
    matched=None,
    num_prompt_tokens=1,
    num_output_tokens=3,
    num_cached_tokens=0,
    speculation=SpeculationStats((), 0),
    queue_seconds=0.0,
    prefill_seconds=0.0,
    decode_seconds=0.0,
)


class FakeDevice:
    """An engine core on an asynchronous device; logs launches and waits.

    A request of N tokens takes N steps; each commits one token, numbered from 1.
    """

    info: Any = None

    def __init__(self) -> None:
        self.log: list[str] = []
        self.breaks_in_step = 0
        self._left: dict[str, int] = {}
        self._committed: dict[str, int] = {}
        self._numbers = itertools.count(1)

    @property
    def is_idle(self) -> bool:
        return not self._left

    def add(self, request: Request) -> None:
        self._left[request.request_id] = request.params.max_new_tokens
        self._committed[request.request_id] = 0

    def abort(self, request_id: str) -> Finish | None:
        return ENDED if self._left.pop(request_id, None) is not None else None

    def request_ids(self) -> list[str]:
        return list(self._left)

    def snapshot(self) -> Any:
        return None

    def record_idle(self, seconds: float) -> None:
        """Does nothing."""

    def step(self, meanwhile: Callable[[], None]) -> list[TokenEvent]:
        number = next(self._numbers)
        self.log.append(f"launch {number}")
        meanwhile()
        if number == self.breaks_in_step:
            raise RuntimeError("the device is gone")
        self.log.append(f"wait {number}")
        events = []
        for name in list(self._left):
            self._left[name] -= 1
            self._committed[name] += 1
            finish = ENDED if self._left[name] == 0 else None
            if finish is not None:
                del self._left[name]
            events.append(TokenEvent(name, (self._committed[name],), finish))
        return events
