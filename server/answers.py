"""From what the engine is asked to the text that a client sees, one or several prompts at once."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from uuid import uuid4

from engine import EngineClient, Finish, FinishReason, Request, TokenEvent, TokenLogprob
from server.asking import Ask
from server.deadlines import TimeLimits, in_time
from server.errors import ApiError
from server.inbox import Inbox, Silence
from server.metrics import ServerMetrics
from server.records import RequestRecord
from server.stops import AnswerText, StopStrings, StopTable
from server.text import IncrementalDecoder, TextCodec


@dataclass(frozen=True, slots=True)
class Delta:
    """What an answer gained. The last one of an answer carries its finish.

    Tokens may come without text, which is kept back while a character is unfinished or a stop
    string may have begun, and text may come without tokens at the end. Log probabilities that were
    asked for come with the tokens, one for each; those of the prompt with the first ones.
    """

    text: str
    token_ids: tuple[int, ...]
    finish: Finish | None
    seconds: float  # since the prompt was handed to the engine
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """All of it."""

    text: str
    token_ids: tuple[int, ...]
    finish: Finish
    seconds: float
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


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
        """The answers in the order of the asks. Raises as EngineClient.generate does."""
        parts: list[list[Delta]] = [[] for _ in asks]
        async with aclosing(self.deltas(asks, silence_s=None, record=record)) as deltas:
            async for item in deltas:
                assert not isinstance(item, Silence), "silence was not asked for"
                index, delta = item
                parts[index].append(delta)
        return [_join(part) for part in parts]

    async def deltas(
        self,
        asks: Sequence[Ask],
        *,
        silence_s: float | None,
        record: RequestRecord,
        token_by_token: bool = False,
    ) -> AsyncGenerator[tuple[int, Delta] | Silence, None]:
        """(index of the ask, what its answer gained), in the order in which it happens.

        Each answer that ends is added to the record. With token_by_token a delta has one token.

        When one fails, the others are cancelled and its error is raised.
        """
        inbox: Inbox[tuple[int, Delta] | Exception] = Inbox(silence_s=silence_s)
        tasks = [
            asyncio.create_task(self._follow(i, self._answer(ask, token_by_token), inbox, record))
            for i, ask in enumerate(asks)
        ]
        num_open = len(tasks)
        try:
            while num_open:
                item = await inbox.get()
                if isinstance(item, Exception):
                    raise item
                if not isinstance(item, Silence):
                    num_open -= item[1].finish is not None
                yield item
        finally:
            inbox.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(
        self,
        index: int,
        answer: AsyncGenerator[Delta, None],
        inbox: Inbox[tuple[int, Delta] | Exception],
        record: RequestRecord,
    ) -> None:
        asked_at = time.time()
        try:
            async with aclosing(answer) as deltas:
                async for delta in deltas:
                    if delta.finish is not None:
                        record.add(asked_at, delta.finish)
                    inbox.put((index, delta))
                    if delta.finish is not None:
                        return
            raise AssertionError(f"the engine ended answer {index} without saying how")
        except Exception as error:
            inbox.put(error)

    async def _answer(self, ask: Ask, token_by_token: bool) -> AsyncGenerator[Delta, None]:
        table = StopTable(ask.stops)
        min_tokens = ask.params.min_new_tokens
        answer = AnswerText(decoder=self._decoder(ask), table=table, min_tokens=min_tokens)
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
        clock = self._metrics.clock()
        with self._named(request.request_id, ask.names):
            async with aclosing(self._engine.generate(request)) as events:
                echo = ask.echo
                is_queued = partial(self._engine.is_queued, request.request_id)
                async for event in in_time(events, self._limits, is_queued=is_queued):
                    if ask.grammar and mask is not None and mask.error is not None:
                        raise _lost_grammar(mask.error, field=ask.grammar.field)
                    seconds = clock.saw(event)
                    for part in _one_by_one(event) if token_by_token else (event,):
                        yield _delta(part, answer, seconds, echo=echo)
                        echo = ""

    def _decoder(self, ask: Ask) -> IncrementalDecoder:
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


def _lost_grammar(why: str, *, field: str) -> ApiError:
    return ApiError(
        f"'{field}' could not be followed to its end: {why}",
        param=field,
        code="grammar_too_complex",
    )


def _one_by_one(event: TokenEvent) -> Iterator[TokenEvent]:
    """The event as one for each of its tokens; the finish comes with the last."""
    *others, last = range(max(1, len(event.token_ids)))
    for i in others:
        yield replace(
            event,
            token_ids=event.token_ids[i : i + 1],
            finish=None,
            logprobs=event.logprobs[i : i + 1],
            prompt_logprobs=event.prompt_logprobs if i == 0 else (),
        )
    yield replace(
        event,
        token_ids=event.token_ids[last:],
        logprobs=event.logprobs[last:],
        prompt_logprobs=event.prompt_logprobs if last == 0 else (),
    )


def _delta(event: TokenEvent, answer: AnswerText, seconds: float, *, echo: str) -> Delta:
    spoken, finish = event.token_ids, event.finish
    if (
        finish is not None
        and finish.reason is FinishReason.STOP
        and isinstance(finish.matched, int)
    ):
        spoken = spoken[:-1]  # text excludes the stop, and this one is a token
    text = echo + "".join(answer.push(token_id) for token_id in spoken)
    if finish is not None:
        text += answer.flush()
    return Delta(
        text,
        event.token_ids,
        finish,
        seconds,
        logprobs=event.logprobs,
        prompt_logprobs=event.prompt_logprobs,
    )


def _join(parts: list[Delta]) -> Answer:
    finish = parts[-1].finish
    assert finish is not None, "an answer without an end"
    return Answer(
        text="".join(part.text for part in parts),
        token_ids=tuple(token_id for part in parts for token_id in part.token_ids),
        finish=finish,
        seconds=parts[-1].seconds,
        logprobs=tuple(entry for part in parts for entry in part.logprobs),
        prompt_logprobs=tuple(entry for part in parts for entry in part.prompt_logprobs),
    )
