"""From what the engine is asked to the text that a client sees, one or several prompts at once."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from uuid import uuid4

from engine import EngineClient, EngineError, Request, TokenEvent
from server.generation.delta_queue import DeltaQueue, Silence
from server.generation.deltas import (
    CompletionOutput,
    Cut,
    Delta,
    answer_of,
    joined,
    one_by_one,
    uncut,
)
from server.generation.input_processor import TokenizedRequest
from server.generation.output_processor import OutputProcessor
from server.generation.stop_strings import AnswerText, StopStrings, StopTable
from server.http.metrics import ServerMetrics
from server.http.request_records import RequestRecord
from server.http.timeouts import TimeLimits, in_time
from server.text.detokenizer import Decoder
from server.text.tokenizer import TextCodec

Gains = list[tuple[int, Delta]]  # (index of the ask, what its answer gained), in order
Deltas = AsyncGenerator[Gains | Silence, None]


class TextGenerator:
    """Asks the engine and follows its answers. Whoever stops listening cancels."""

    def __init__(
        self,
        *,
        engine: EngineClient,
        text: TextCodec,
        metrics: ServerMetrics,
        limits: TimeLimits,
    ) -> None:
        self._engine = engine
        self._text = text
        self._metrics = metrics
        self._limits = limits
        self._running: dict[str, tuple[str, ...]] = {}  # engine's request id -> names

    async def abort(self, name: str) -> int:
        """End the requests that go by this name; how many there were."""
        ids = [engine_id for engine_id, names in self._running.items() if name in names]
        return sum([await self._engine.abort(engine_id) for engine_id in ids])

    async def whole(
        self, asks: Sequence[TokenizedRequest], *, record: RequestRecord
    ) -> list[CompletionOutput]:
        """The answers in the order of the asks. Raises as EngineClient.generate does.

        Nobody is woken before one of them is complete. Each is on the record at its end.

        When one fails, the others are cancelled and its error is raised.
        """
        tasks = [asyncio.create_task(self._whole(ask, record)) for ask in asks]
        try:
            return await asyncio.gather(*tasks)
        finally:
            await _end(tasks)

    async def deltas(
        self,
        asks: Sequence[TokenizedRequest],
        *,
        silence_s: float | None,
        record: RequestRecord,
        token_by_token: bool = False,
    ) -> Deltas:
        """What the answers gain, as it happens. The rest is as with `whole`.

        With token_by_token a delta has one token.
        """
        inbox: DeltaQueue[tuple[int, Delta]] = DeltaQueue(silence_s=silence_s)
        cut = one_by_one if token_by_token else uncut
        tasks = [
            asyncio.create_task(self._follow(i, ask, cut, inbox, record))
            for i, ask in enumerate(asks)
        ]
        num_open = len(tasks)
        try:
            while num_open:
                gains = await inbox.get()
                if not isinstance(gains, Silence):
                    num_open -= sum(delta.finish is not None for _, delta in gains)
                yield gains
        finally:
            inbox.close()
            await _end(tasks)

    async def _whole(self, ask: TokenizedRequest, record: RequestRecord) -> CompletionOutput:
        events: list[TokenEvent] = []
        with self._asked(ask, record) as (request, hearing):
            try:
                await self._in_time(request, self._engine.generate_whole(request, events))
            finally:  # what nobody waited for was computed all the same
                for event in events:
                    hearing.note(event)
            return answer_of(hearing.delta(joined(events)))

    async def _follow(
        self,
        index: int,
        ask: TokenizedRequest,
        cut: Cut,
        inbox: DeltaQueue[tuple[int, Delta]],
        record: RequestRecord,
    ) -> None:
        try:
            with self._asked(ask, record) as (request, hearing):

                def hear(event: TokenEvent) -> None:
                    hearing.note(event)
                    for part in cut(event):
                        inbox.put((index, hearing.delta(part)))

                await self._in_time(request, self._engine.generate(request, hear))
                assert hearing.is_over, f"an answer to {ask.names} ended without saying how"
        except Exception as error:
            inbox.fail(error)

    @contextmanager
    def _asked(
        self, ask: TokenizedRequest, record: RequestRecord
    ) -> Iterator[tuple[Request, OutputProcessor]]:
        """What the engine is asked by these names, and who hears of it."""
        table = StopTable(ask.stops)
        min_tokens = ask.params.min_new_tokens
        mask = ask.grammar.mask(ignore_eos=ask.params.ignore_eos) if ask.grammar else None
        request = Request(
            request_id=uuid4().hex,
            prompt_ids=ask.prompt_ids,
            params=ask.params,
            stop_scanner=(
                StopStrings(decoder=self._decoder(ask), table=table, min_tokens=min_tokens)
                if ask.stops
                else None
            ),
            token_mask=mask,
            choice=ask.choice,
        )
        hearing = OutputProcessor(
            ask,
            text=AnswerText(decoder=self._decoder(ask), table=table, min_tokens=min_tokens),
            mask=mask,
            clock=self._metrics.clock(),
            record=record,
        )
        self._running[request.request_id] = ask.names
        try:
            yield request, hearing
        except EngineError:
            raise  # it has refused or died, and nobody has given anything up
        except BaseException:
            hearing.give_up()
            raise
        finally:
            del self._running[request.request_id]

    async def _in_time(self, request: Request, answering: Coroutine[Any, Any, None]) -> None:
        is_waiting = partial(self._engine.is_queued, request.request_id)
        await in_time(answering, self._limits, is_waiting=is_waiting)

    def _decoder(self, ask: TokenizedRequest) -> Decoder:
        return self._text.decoder(
            skip_special_tokens=ask.skip_special_tokens,
            eos_token_ids=self._engine.info.eos_token_ids,
            kept_ids=ask.kept_ids,
        )


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """None of them runs any more after this."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
