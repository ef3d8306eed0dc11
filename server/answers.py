"""From what the engine is asked to the text that a client sees, one or several prompts at once."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from uuid import uuid4

from engine import EngineClient, Request
from server.asking import Ask
from server.deadlines import TimeLimits, in_time
from server.decoding import Decoder
from server.deltas import Answer, Cut, Delta, answer_of, at_the_end, one_by_one, uncut
from server.hearing import Hearing
from server.inbox import Inbox, Silence
from server.metrics import ServerMetrics
from server.records import RequestRecord
from server.stops import AnswerText, StopStrings, StopTable
from server.text import TextCodec

Gains = list[tuple[int, Delta]]  # (index of the ask, what its answer gained), in order
Deltas = AsyncGenerator[Gains | Silence, None]


class Answers:
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

    async def whole(self, asks: Sequence[Ask], *, record: RequestRecord) -> list[Answer]:
        """The answers in the order of the asks. Raises as EngineClient.generate does.

        Nobody is woken before one of them is complete.
        """
        answers: dict[int, Answer] = {}
        following = self._follow_all(asks, at_the_end, record, silence_s=None, in_parts=False)
        async with aclosing(following) as deltas:
            async for gains in deltas:
                assert not isinstance(gains, Silence), "silence was not asked for"
                answers |= {index: answer_of(delta) for index, delta in gains}
        return [answers[index] for index in range(len(asks))]

    def deltas(
        self,
        asks: Sequence[Ask],
        *,
        silence_s: float | None,
        record: RequestRecord,
        token_by_token: bool = False,
    ) -> Deltas:
        """What the answers gain, as it happens.

        Each answer that ends is added to the record. With token_by_token a delta has one token.

        When one fails, the others are cancelled and its error is raised.
        """
        cut = one_by_one if token_by_token else uncut
        return self._follow_all(asks, lambda: cut, record, silence_s=silence_s, in_parts=True)

    async def _follow_all(
        self,
        asks: Sequence[Ask],
        new_cut: Callable[[], Cut],
        record: RequestRecord,
        *,
        silence_s: float | None,
        in_parts: bool,
    ) -> Deltas:
        inbox: Inbox[tuple[int, Delta]] = Inbox(silence_s=silence_s)
        tasks = [
            asyncio.create_task(self._follow(i, ask, new_cut(), inbox, record, in_parts=in_parts))
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
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(
        self,
        index: int,
        ask: Ask,
        cut: Cut,
        inbox: Inbox[tuple[int, Delta]],
        record: RequestRecord,
        *,
        in_parts: bool,
    ) -> None:
        asked_at = time.time()

        def tell(delta: Delta) -> None:
            if delta.finish is not None:
                record.add(asked_at, delta.finish)
            inbox.put((index, delta))

        try:
            await self._answer(ask, cut, tell, in_parts=in_parts)
        except Exception as error:
            inbox.fail(error)

    async def _answer(
        self, ask: Ask, cut: Cut, tell: Callable[[Delta], None], *, in_parts: bool
    ) -> None:
        """Have the engine answer, and tell the deltas to the one with the finish."""
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
            row_mask=mask,
            choice=ask.choice,
        )
        hearing = Hearing(
            ask,
            text=AnswerText(decoder=self._decoder(ask), table=table, min_tokens=min_tokens),
            mask=mask,
            clock=self._metrics.clock(),
            cut=cut,
            tell=tell,
        )

        async def is_waiting() -> bool:
            return not hearing.has_begun and await self._engine.is_queued(request.request_id)

        with self._named(request.request_id, ask.names):
            answering = self._engine.generate(request, hearing.hear, in_parts=in_parts)
            await in_time(answering, self._limits, is_waiting=is_waiting)
        assert hearing.is_over, f"the engine ended an answer to {ask.names} without saying how"

    def _decoder(self, ask: Ask) -> Decoder:
        return self._text.decoder(
            skip_special_tokens=ask.skip_special_tokens,
            eos_token_ids=self._engine.info.eos_token_ids,
            kept_ids=ask.kept_ids,
        )

    @contextmanager
    def _named(self, engine_id: str, names: tuple[str, ...]) -> Iterator[None]:
        self._running[engine_id] = names
        try:
            yield
        finally:
            del self._running[engine_id]
