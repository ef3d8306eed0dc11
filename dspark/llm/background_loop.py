"""Runs coroutines in an event loop of a background thread, for callers that are not async."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundLoop:
    """An event loop in a thread. Safe to use from any thread, also from one that runs a loop."""

    def __init__(self, *, name: str) -> None:
        """name says in errors what was closed."""
        self._name = name
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine's result. An interrupt cancels it.

        Raises what it raises, and RuntimeError once the loop is closed or if it closes meanwhile.
        """
        future = self._submit(coroutine)
        try:
            return future.result()
        except CancelledError:
            raise self._closed() from None
        except BaseException:
            future.cancel()
            raise

    def run_unattended(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Start a coroutine whose end is of no interest. Does nothing once the loop is closed."""
        with suppress(RuntimeError):
            self._submit(coroutine)

    def close(self) -> None:
        """Cancel what runs, stop the thread. A second call does nothing."""
        with self._lock:
            if self._is_closed:
                return
            ended = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
            self._is_closed = True
        if threading.current_thread() is self._thread:
            return  # collected here as garbage: the loop stops once it is back in control
        ended.result()
        self._thread.join()
        self._loop.close()

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        with self._lock:  # so that whatever is submitted is there for close to cancel
            if not self._is_closed:
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        coroutine.close()
        raise self._closed()

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()
        self._loop.call_soon(self._loop.stop)

    def _closed(self) -> RuntimeError:
        return RuntimeError(f"this {self._name} is closed")
