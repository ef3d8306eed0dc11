"""Runs the engine core in its thread: posted calls come in, events go out."""

import asyncio
import dataclasses
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

import torch

from engine.api import (
    ContextKVMode,
    ContextKVStatus,
    EngineInfo,
    EngineSnapshot,
    FinishReason,
    Request,
    TokenEvent,
)
from engine.core.engine_core import EngineCore
from engine.core.event_dispatch import EventDispatcher, Listener
from engine.errors import EngineDead, EngineDraining, EngineError, RequestFailed
from engine.observability.observers import Observers
from engine.scheduler.request_fault import RequestFault

logger = logging.getLogger(__name__)
T = TypeVar("T")

_STEP_S = 5.0  # that drain waits for the current step, after its timeout


class EngineWorker:
    """Serves the EngineClient protocol with a thread that owns the engine core.

    Every access to the core is posted to the thread as a call, so the scheduler, the pool and
    sequences need no lock. When the loop stops, waiting requests and later calls fail with
    EngineDead.
    """

    def __init__(
        self,
        engine: EngineCore,
        *,
        num_threads: int | None = None,
        observers: Sequence[Callable[[EngineSnapshot], None]] = (),
        has_collapsed: Callable[[], bool] = lambda: False,
        delivers_after_launch: bool = False,
    ) -> None:
        """Start the thread.

        num_threads: torch's, for the step loop. observers get a snapshot after every step.
        has_collapsed: of the snapshots; called in any thread.
        delivers_after_launch: for a device that computes asynchronously. Events are delivered
        once the next pass is launched: detokenizing them needs the interpreter, and would delay
        the launch.
        """
        self._engine = engine
        self._observers = Observers(observers)
        self._has_collapsed = has_collapsed
        self._num_threads = num_threads
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._delivers_after_launch = delivers_after_launch
        # Both are used by the engine's thread alone.
        self._listeners: dict[str, Listener] = {}  # by request id
        self._events = EventDispatcher()
        self._snapshot = engine.snapshot()
        self._progress_at = time.monotonic()
        self._death: EngineDead | None = None
        self._is_draining = False
        self._is_closing = False
        self._has_ended = False  # the thread: calls are refused by the thread that posts them
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    def is_healthy(self) -> bool:
        return self._death is None

    async def generate(self, request: Request, on_event: Callable[[TokenEvent], None]) -> None:
        await self._generate(request, Listener(on_event, in_parts=True))

    async def generate_whole(self, request: Request, events: list[TokenEvent]) -> None:
        await self._generate(request, Listener(events.append, in_parts=False))

    async def _generate(self, request: Request, listener: Listener) -> None:
        if self._is_draining:
            raise EngineDraining("the server is shutting down and takes no new requests")
        admitted = self._post(partial(self._admit, request, listener))
        try:
            await admitted
            await listener.until_over()
        finally:
            listener.close()
            if not listener.is_over:
                self._inbox.put(partial(self._forget, request.request_id, listener))

    async def is_queued(self, request_id: str) -> bool:
        return await self._post(partial(self._engine.is_queued, request_id))

    async def abort(self, request_id: str | None) -> int:
        return await self._post(partial(self._abort, request_id))

    async def set_context_kv(self, mode: ContextKVMode) -> ContextKVStatus:
        return await self._post(partial(self._engine.set_context_kv, mode))

    async def context_kv_status(self) -> ContextKVStatus:
        return await self._post(self._engine.context_kv_status)

    async def start_profile(self, folder: str) -> None:
        await self._post(partial(self._engine.start_profile, folder))

    async def stop_profile(self) -> str:
        return await self._post(self._engine.stop_profile)

    async def flush_cache(self) -> int:
        return await self._post(self._engine.flush_cache)

    async def snapshot(self) -> EngineSnapshot:
        """Return the state after the latest step without waiting, even while a step hangs."""
        return dataclasses.replace(
            self._snapshot,
            has_collapsed=self._has_collapsed(),
            seconds_since_progress=time.monotonic() - self._progress_at,
        )

    async def drain(self, timeout_s: float) -> bool:
        self._is_draining = True
        try:
            async with asyncio.timeout(timeout_s + _STEP_S):  # a step may hang
                return await self._drained(deadline=time.monotonic() + timeout_s)
        except (TimeoutError, EngineDead):
            return False

    async def _drained(self, *, deadline: float) -> bool:
        while not await self._post(lambda: self._engine.is_idle):
            if time.monotonic() >= deadline:
                await self.abort(None)
                return False
            await asyncio.sleep(0.02)
        return True

    def close(self) -> None:
        """Stop the thread; running requests fail with EngineDead."""
        self._is_closing = True
        self._inbox.put(lambda: None)
        self._thread.join(timeout=30)

    # -- in the engine's thread ---------------------------------------------------------------

    def _run(self) -> None:
        if self._num_threads is not None:
            torch.set_num_threads(self._num_threads)
        try:
            with torch.inference_mode():
                while not self._is_closing:
                    self._handle_inbox(wait=self._engine.is_idle)
                    self._step()
            self._die(EngineDead("the engine was closed"))
        except BaseException:
            logger.exception("the step loop stopped")
            self._die(EngineDead("the engine has stopped; the server's log has the details"))
        while not self._is_closing:
            self._inbox.get()()  # every call finds self._death and passes it on
        self._has_ended = True
        self._refuse_calls()

    def _step(self) -> None:
        if self._engine.is_idle:
            return
        events = self._engine.step(meanwhile=self._events.flush)
        self._note_progress()
        for event in events:
            listener = self._listeners.get(event.request_id)
            if listener is not None:
                self._events.add(listener, _delivered(event))
            if event.finish is not None:
                self._listeners.pop(event.request_id, None)
        if not (self._delivers_after_launch and events) or self._engine.is_idle:
            self._events.flush()

    def _note_progress(self) -> None:
        self._snapshot = self._engine.snapshot()
        self._progress_at = time.monotonic()
        self._observers.notify(self._snapshot)

    def _handle_inbox(self, *, wait: bool) -> None:
        if wait:
            self._events.flush()  # no step follows that could deliver them
            idle_since = time.monotonic()
            call = self._inbox.get()
            idle_s = time.monotonic() - idle_since
            call()
            self._engine.record_idle(idle_s)
            self._progress_at = time.monotonic()  # waiting for work is not a stall
        elif self._inbox.empty():
            return
        while not self._inbox.empty():
            self._inbox.get()()
        self._snapshot = self._engine.snapshot()

    def _admit(self, request: Request, listener: Listener) -> None:
        try:
            self._engine.add(request)
        except EngineError:
            raise
        except Exception as error:
            logger.exception("request %s failed at admission", request.request_id)
            raise RequestFailed(str(RequestFault(request.request_id))) from error
        self._listeners[request.request_id] = listener

    def _forget(self, request_id: str, listener: Listener) -> None:
        """End a request whose caller is gone, unless the id belongs to another request now."""
        if self._listeners.get(request_id) is listener:
            del self._listeners[request_id]
            self._engine.abort(request_id)

    def _abort(self, request_id: str | None) -> int:
        ids = [request_id] if request_id is not None else self._engine.request_ids()
        found = 0
        for each in ids:
            finish = self._engine.abort(each)
            if finish is None:
                continue
            found += 1
            assert finish.reason is FinishReason.ABORT
            listener = self._listeners.pop(each, None)
            if listener is not None:
                self._events.add(listener, TokenEvent(each, (), finish))
        self._events.flush()
        return found

    def _die(self, death: EngineDead) -> None:
        self._death = death
        for listener in self._listeners.values():
            self._events.add(listener, death)
        self._events.flush()
        self._listeners.clear()

    # -- posting calls ------------------------------------------------------------------------

    def _post(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        """Run a call between two steps; return a future of its result or error."""
        done: Future[T] = Future()

        def run() -> None:
            if not done.set_running_or_notify_cancel():
                return
            if self._death is not None:
                done.set_exception(self._death)
                return
            try:
                done.set_result(call())
            except EngineError as error:
                done.set_exception(error)
            except Exception as error:
                done.set_exception(error)
                raise

        self._inbox.put(run)
        if self._has_ended:
            self._refuse_calls()
        return asyncio.wrap_future(done)

    def _refuse_calls(self) -> None:
        """Run the posted calls, each of which fails with self._death.

        The thread does so when it ends; after that, every thread that posts a call does.
        """
        while True:
            try:
                call = self._inbox.get_nowait()
            except queue.Empty:
                return
            call()


def _delivered(event: TokenEvent) -> TokenEvent | RequestFailed:
    """Return what a listener gets: the event, or the error that ends its request."""
    finish = event.finish
    if finish is None or finish.reason is not FinishReason.ERROR:
        return event
    assert finish.error is not None, f"request {event.request_id} failed without a message"
    return RequestFailed(finish.error)
