"""Runs tokenized requests on the engine and returns or streams their text."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from engine import EngineBusy, EngineClient, EngineError, Request, TokenEvent
from server.generation.delta_queue import DeltaQueue, KeepAlive
from server.generation.deltas import (
    CompletionOutput,
    Delta,
    EventSplit,
    completion_of,
    join_events,
    split_by_token,
    unsplit,
)
from server.generation.input_processor import TokenizedRequest
from server.generation.output_processor import OutputProcessor
from server.generation.stop_strings import OutputText, StopStringScanner, StopTable
from server.http.metrics import ServerMetrics
from server.http.request_records import RequestRecord
from server.http.timeouts import TimeLimits, in_time
from server.text.detokenizer import Decoder
from server.text.tokenizer import TextCodec

T = TypeVar("T")

_RETRY_S = 0.05  # between two attempts to queue a request of a later portion

DeltaBatch = list[tuple[int, Delta]]  # (index of the request, its delta), in order
DeltaStream = AsyncGenerator[DeltaBatch | KeepAlive, None]


class TextGenerator:
    """Generates text for tokenized requests. Cancelling a call cancels its requests."""

    def __init__(
        self,
        *,
        engine: EngineClient,
        text: TextCodec,
        metrics: ServerMetrics,
        limits: TimeLimits,
        capacity: int | None = None,
        replica: str | None = None,
    ) -> None:
        """capacity: requests that the engine runs and queues; a longer list goes in portions.

        replica: begins the request ids of a deployment; `abort` accepts them without it too.
        """
        self._capacity = capacity
        self._replica = replica
        self._engine = engine
        self._text = text
        self._metrics = metrics
        self._limits = limits
        self._running: dict[str, tuple[str, ...]] = {}  # engine's request id -> names

    async def abort(self, name: str) -> int:
        """Abort the requests with this name; return how many there were."""
        accepted = {name, f"{self._replica}-{name}"}
        ids = [own for own, names in self._running.items() if not accepted.isdisjoint(names)]
        return sum([await self._engine.abort(engine_id) for engine_id in ids])

    async def generate(
        self, requests: Sequence[TokenizedRequest], *, record: RequestRecord
    ) -> list[CompletionOutput]:
        """Return the finished completions in the order of the requests.

        Raises as EngineClient.generate does; the first error cancels the other requests. Each
        completion is added to the record at its end.
        """
        gate = self._gate(requests)
        tasks = [
            asyncio.create_task(gate.run(partial(self._generate, request, record), index))
            for index, request in enumerate(requests)
        ]
        try:
            return await asyncio.gather(*tasks)
        finally:
            await _cancel(tasks)

    async def stream(
        self,
        requests: Sequence[TokenizedRequest],
        *,
        keepalive_s: float | None,
        record: RequestRecord,
        token_by_token: bool = False,
    ) -> DeltaStream:
        """Yield deltas as the engine generates them; errors and records as in `generate`.

        With token_by_token each delta has one token.
        """
        queue: DeltaQueue[tuple[int, Delta]] = DeltaQueue(keepalive_s=keepalive_s)
        split = split_by_token if token_by_token else unsplit
        gate = self._gate(requests)
        tasks = [
            asyncio.create_task(self._stream(index, request, split, queue, record, gate))
            for index, request in enumerate(requests)
        ]
        num_open = len(tasks)
        try:
            while num_open:
                batch = await queue.get()
                if not isinstance(batch, KeepAlive):
                    num_open -= sum(delta.finish is not None for _, delta in batch)
                yield batch
        finally:
            queue.close()
            await _cancel(tasks)

    async def _generate(
        self, tokenized: TokenizedRequest, record: RequestRecord
    ) -> CompletionOutput:
        events: list[TokenEvent] = []
        with self._submission(tokenized, record) as (request, output):
            try:
                await self._in_time(request, self._engine.generate_whole(request, events))
            finally:  # tokens of a cancelled request were computed as well: record them
                for event in events:
                    output.observe(event)
            return completion_of(output.delta(join_events(events)))

    async def _stream(
        self,
        index: int,
        tokenized: TokenizedRequest,
        split: EventSplit,
        queue: DeltaQueue[tuple[int, Delta]],
        record: RequestRecord,
        gate: "_Gate",
    ) -> None:
        async def run() -> None:
            with self._submission(tokenized, record) as (request, output):

                def on_event(event: TokenEvent) -> None:
                    output.observe(event)
                    for part in split(event):
                        queue.put((index, output.delta(part)))

                await self._in_time(request, self._engine.generate(request, on_event))
                assert output.is_finished, f"request {tokenized.names} ended without a finish"

        try:
            await gate.run(run, index)
        except Exception as error:
            queue.fail(error)

    def _gate(self, requests: Sequence[TokenizedRequest]) -> "_Gate":
        return _Gate(len(requests) if self._capacity is None else self._capacity)

    @contextmanager
    def _submission(
        self, tokenized: TokenizedRequest, record: RequestRecord
    ) -> Iterator[tuple[Request, OutputProcessor]]:
        """Yield the engine's request and the processor of its output; register its names."""
        table = self._stop_table(tokenized)
        params = tokenized.params
        mask = tokenized.grammar.mask(ignore_eos=params.ignore_eos) if tokenized.grammar else None
        request = Request(
            request_id=uuid4().hex,
            prompt_ids=tokenized.prompt_ids,
            params=params,
            stop_scanner=(
                StopStringScanner(
                    decoder=self._decoder(tokenized),
                    table=table,
                    min_tokens=params.min_new_tokens,
                )
                if not table.is_empty
                else None
            ),
            token_mask=mask,
            choice=tokenized.choice,
            priority=tokenized.priority,
            cache_salt=tokenized.cache_salt,
            owner=tokenized.owner,
        )
        output = OutputProcessor(
            tokenized,
            text=OutputText(
                decoder=self._decoder(tokenized),
                table=table,
                min_tokens=params.min_new_tokens,
                keeps_stop=tokenized.keeps_stop,
            ),
            mask=mask,
            timer=self._metrics.timer(),
            record=record,
        )
        self._running[request.request_id] = tokenized.names
        try:
            yield request, output
        except EngineError:
            raise  # the engine has refused the request or died: the server aborted nothing
        except BaseException:
            output.abort()
            raise
        finally:
            del self._running[request.request_id]

    async def _in_time(self, request: Request, generation: Coroutine[Any, Any, None]) -> None:
        is_queued = partial(self._engine.is_queued, request.request_id)
        await in_time(generation, self._limits, is_queued=is_queued)

    def _stop_table(self, tokenized: TokenizedRequest) -> StopTable:
        regexes = tokenized.stop_regexes
        if not tokenized.stops or not tokenized.skip_special_tokens:
            return StopTable(tokenized.stops, regexes=regexes)
        hidden = self._text.skipped_tokens(
            eos_token_ids=self._engine.info.eos_token_ids, kept_ids=tokenized.kept_ids
        )
        return StopTable(tokenized.stops, hidden=hidden, regexes=regexes)

    def _decoder(self, tokenized: TokenizedRequest) -> Decoder:
        return self._text.decoder(
            skip_special_tokens=tokenized.skip_special_tokens,
            eos_token_ids=self._engine.info.eos_token_ids,
            kept_ids=tokenized.kept_ids,
        )


class _Gate:
    """Lets at most `size` requests of one list into the engine at a time."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._places = asyncio.Semaphore(size)

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]], index: int) -> T:
        """Run the work of request number `index`.

        Raises EngineBusy for the first portion alone; later ones wait for a place in the queue.
        """
        async with self._places:
            while True:
                try:
                    return await work()
                except EngineBusy:
                    if index < self._size:
                        raise
                    await asyncio.sleep(_RETRY_S)


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel the tasks and wait until all of them have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
