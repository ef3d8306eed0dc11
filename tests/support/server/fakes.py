"""A scripted engine, and a real web server for one test."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any

from fastapi import FastAPI

from engine import (
    ContextKVMode,
    ContextKVStatus,
    EngineDead,
    EngineError,
    EngineInfo,
    EngineSnapshot,
    Finish,
    FinishReason,
    Request,
    RequestRejected,
    Round,
    SourceStats,
    SpeculationStats,
    TokenEvent,
    TokenLogprob,
)
from server.app import create_app
from server.http.connections import ConnectionLimits
from server.http.graceful_server import GracefulServer
from server.http.listener import Listener
from server.http.request_records import RequestRecord
from server.options import ServerOptions
from tests.support.server.byte_text import EOS, NUM_IDS, byte_codec

End = tuple[FinishReason, int | str | None]  # why, and the stop that matched


class FakeEngine:
    """Generates a scripted output, a few tokens per step, as EngineClient requires.

    `output` is the text of every completion, or a function from the request to its tokens.
    """

    def __init__(
        self,
        output: str | Callable[[Request], Sequence[int]] = "hello world",
        *,
        tokens_per_step: int = 3,
        max_len: int = 200,
        refusal: EngineError | None = None,
        refuses: Callable[[Request], bool] = lambda request: True,
        steps_before_pause: int | None = None,
        pauses: Callable[[Request], bool] = lambda request: True,
        stays_queued: bool = False,
    ) -> None:
        self._output = output
        self._tokens_per_step = tokens_per_step
        self._refusal = refusal
        self._refuses = refuses
        self._steps_before_pause = steps_before_pause
        self._pauses = pauses  # whether a request pauses at all
        self._stays_queued = stays_queued  # is_queued returns True for running requests
        self._aborted: set[str] = set()
        self._death: EngineError | Exception | None = None
        self.info = EngineInfo(max_len, NUM_IDS, 4, (EOS,), {"device": "none"})
        self.requests: list[Request] = []
        self.running: set[str] = set()
        self.queued: set[str] = set()
        self.num_events = 0  # sent to callbacks
        self.num_cancelled = 0
        self.profile: str | None = None
        self.mode: ContextKVMode = "auto"
        self.state = EngineSnapshot(num_pages=8)

    def die(self, error: Exception | None = None) -> None:
        self._death = error or EngineDead("step loop stopped: out of luck")

    def is_healthy(self) -> bool:
        return self._death is None

    async def generate(self, request: Request, on_event: Callable[[TokenEvent], None]) -> None:
        async with aclosing(self._events(request)) as events:
            async for event in events:
                on_event(event)
                self.num_events += 1

    async def generate_whole(self, request: Request, events: list[TokenEvent]) -> None:
        await self.generate(request, events.append)

    async def _events(self, request: Request) -> AsyncGenerator[TokenEvent, None]:
        self.requests.append(request)
        if self._refusal is not None and self._refuses(request):
            raise self._refusal
        self.running.add(request.request_id)
        if self._stays_queued:
            self.queued.add(request.request_id)
        has_ended = False
        try:
            for num_step, (token_ids, end, num_output) in enumerate(self._steps(request)):
                while self._is_paused(request, num_step):
                    await asyncio.sleep(0.002)
                await asyncio.sleep(0)
                if self._death is not None:
                    raise self._death
                if request.request_id in self._aborted:
                    token_ids, end = (), (FinishReason.ABORT, None)
                has_ended = end is not None
                finish = self._finish(request, num_output, *end) if end else None
                yield self._event(request, token_ids, finish, is_first=num_step == 0)
                if has_ended:
                    return
        finally:
            self.running.discard(request.request_id)
            self.queued.discard(request.request_id)
            self.num_cancelled += not has_ended and self._death is None

    def _event(
        self, request: Request, token_ids: tuple[int, ...], finish: Finish | None, *, is_first: bool
    ) -> TokenEvent:
        """Return an event with the requested log probabilities, which encode the token id."""
        params = request.params
        num_top, start = params.num_logprobs, params.prompt_logprobs_from

        def entries(ids: Sequence[int]) -> tuple[TokenLogprob, ...]:
            top = tuple((65 + i, -i / 2) for i in range(num_top or 0))
            requested = tuple((i, -i / 100) for i in params.logprob_token_ids)
            return tuple(TokenLogprob(i, -i / 100, top, requested, rank=i + 1) for i in ids)

        prompt = request.prompt_ids[max(1, start) :] if start is not None and is_first else ()
        own = entries(token_ids) if num_top is not None else ()
        return TokenEvent(
            request.request_id, token_ids, finish, own, entries(prompt), self._rounds(token_ids)
        )

    def _rounds(self, token_ids: tuple[int, ...]) -> tuple[Round, ...]:
        """Describe a step as a round of the draft whose tokens but the last were accepted."""
        if not token_ids:
            return ()
        num_tokens, num_drafted = len(token_ids), self._tokens_per_step
        if num_tokens == 1:
            return (Round("target", 0, 0, 1),)
        return (Round("draft", num_drafted, num_tokens - 1, num_tokens),)

    def _is_paused(self, request: Request, num_step: int) -> bool:
        is_at_pause = num_step == self._steps_before_pause
        return is_at_pause and self._pauses(request) and not self._is_over(request)

    def _is_over(self, request: Request) -> bool:
        return self._death is not None or request.request_id in self._aborted

    def _steps(self, request: Request) -> Iterator[tuple[tuple[int, ...], End | None, int]]:
        """Yield each step's tokens, its end if it is the last, and the number of tokens so far."""
        step: list[int] = []
        for num_output, token_id in enumerate(self._script(request), start=1):
            step.append(token_id)
            end = self._end(request, token_id, num_output)
            if end or len(step) == self._tokens_per_step:
                yield tuple(step), end, num_output
                step = []
            if end:
                return

    def _script(self, request: Request) -> Iterator[int]:
        yield from self._output.encode() if isinstance(self._output, str) else self._output(request)
        while True:
            yield EOS

    def _end(self, request: Request, token_id: int, num_output: int) -> End | None:
        params = request.params
        stop = request.stop_scanner.feed(token_id) if request.stop_scanner else None
        if stop is not None:
            return FinishReason.STOP, stop
        if token_id in params.stop_token_ids or (token_id == EOS and not params.ignore_eos):
            return FinishReason.STOP, token_id
        if num_output >= params.max_new_tokens:
            return FinishReason.LENGTH, None
        return None

    def _finish(
        self, request: Request, num_output: int, reason: FinishReason, matched: int | str | None
    ) -> Finish:
        return Finish(
            reason=reason,
            matched=matched,
            num_prompt_tokens=len(request.prompt_ids),
            num_output_tokens=num_output,
            num_cached_tokens=1,
            speculation=SpeculationStats(
                accept_counts=(1, 0, 2),
                num_draft_tokens=12,
                sources={"draft": SourceStats(2, 8, 2), "lookup": SourceStats(1, 4, 2)},
            ),
            queue_seconds=0.001,
            prefill_seconds=0.002,
            decode_seconds=0.003,
        )

    async def is_queued(self, request_id: str) -> bool:
        return request_id in self.queued

    async def abort(self, request_id: str | None) -> int:
        found = {i for i in self.running if request_id in (None, i)}
        self._aborted |= found
        return len(found)

    async def set_context_kv(self, mode: ContextKVMode) -> ContextKVStatus:
        if mode == "on":
            raise RequestRejected("stacked cannot hold: layer 1 has a bias", param="mode")
        self.mode = mode
        return await self.context_kv_status()

    async def context_kv_status(self) -> ContextKVStatus:
        return ContextKVStatus(self.mode, "per_layer", "layer 1 has a bias", 0)

    async def start_profile(self, folder: str) -> None:
        if self.profile is not None:
            raise RequestRejected("a profile is being recorded; stop it first")
        self.profile = folder

    async def stop_profile(self) -> str:
        if self.profile is None:
            raise RequestRejected("no profile is being recorded; start one first")
        folder, self.profile = self.profile, None
        return f"{folder}/profile.json"

    async def flush_cache(self) -> int:
        return 5

    async def snapshot(self) -> EngineSnapshot:
        if self._death is not None:
            raise EngineDead(str(self._death))
        return self.state

    async def drain(self, timeout_s: float) -> bool:
        return True


def app_with(
    engine: FakeEngine,
    *,
    listeners: Sequence[Callable[[RequestRecord], None]] = (),
    **options: Any,
) -> FastAPI:
    """options are fields of ServerOptions."""
    return create_app(
        engine=engine,
        text=byte_codec(),
        options=ServerOptions(served_name="tiny", **options),
        listeners=listeners,
    )


@contextmanager
def served(app: FastAPI, *, limits: ConnectionLimits | None = None) -> Iterator[str]:
    """Serve the app on a free local port; yield its address."""
    with Listener(host="127.0.0.1", port=0) as listener:
        listener.listen()
        server = GracefulServer(app, on_ready=_nothing, drain=_pass, abandon=_pass, limits=limits)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener.socket]})
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(timeout=10)
            assert not thread.is_alive(), "the web server does not exit"


def _nothing() -> None:
    pass


async def _pass() -> None:
    pass


def wait_until(condition: Callable[[], bool], *, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"no change within {timeout_s} s"
        time.sleep(0.002)
