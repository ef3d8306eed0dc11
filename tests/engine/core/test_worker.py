"""One thread owns the engine: requests are added and cancelled; its death ends them all."""

import asyncio
import dataclasses
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from engine import (
    EngineDead,
    EngineDraining,
    EngineSnapshot,
    FinishReason,
    Request,
    RequestFailed,
    RequestRejected,
    TokenEvent,
)
from engine.core.worker import EngineWorker
from tests.support.engine.tiny_models import write_tiny_draft
from tests.support.engine.workers import collect_events, greedy_request, running_worker


@pytest.fixture(scope="module")
def draft_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_draft(tmp_path_factory.mktemp("draft"))


def begun(
    worker: EngineWorker, request: Request, events: list[TokenEvent], *, in_parts: bool
) -> Coroutine[Any, Any, None]:
    if in_parts:
        return worker.generate(request, events.append)
    return worker.generate_whole(request, events)


@contextmanager
def counted_wakes() -> Iterator[list[object]]:
    """What other threads have this loop call; each is a wake-up."""
    loop = asyncio.get_running_loop()
    wakes: list[object] = []
    call_soon_threadsafe = loop.call_soon_threadsafe

    def counted(call: Callable[..., object], *args: Any, **kwargs: Any) -> asyncio.Handle:
        wakes.append(call)
        return call_soon_threadsafe(call, *args, **kwargs)

    with patch.object(loop, "call_soon_threadsafe", counted):
        yield wakes


async def baseline(worker: EngineWorker) -> None:
    """Wait until nothing runs and no page is used."""
    for _ in range(500):
        now = await worker.snapshot()
        if now.num_running == now.num_waiting == now.num_used_pages == 0:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(await worker.snapshot())


def test_a_stream_ends_with_its_one_finish(draft_folder: Path) -> None:
    async def scenario() -> None:
        async with running_worker(draft_folder) as worker:
            events = await collect_events(worker, greedy_request())
            assert [e.finish is not None for e in events] == [False] * (len(events) - 1) + [True]
            assert sum(len(e.token_ids) for e in events) == 12

    asyncio.run(scenario())


@pytest.mark.parametrize("delivers_after_launch", [False, True])
def test_requests_of_many_callers_run_together(
    draft_folder: Path, delivers_after_launch: bool
) -> None:
    async def scenario() -> None:
        async with running_worker(
            draft_folder, delivers_after_launch=delivers_after_launch
        ) as worker:
            requests = [greedy_request(str(i), seed=i) for i in range(8)]
            together = await asyncio.gather(*(collect_events(worker, r) for r in requests))
            for request, events in zip(requests, together, strict=True):
                again = await collect_events(worker, request)
                assert [t for e in events for t in e.token_ids] == [
                    t for e in again for t in e.token_ids
                ]
            await baseline(worker)

    asyncio.run(scenario())


@pytest.mark.parametrize("in_parts", [False, True])
def test_a_loop_that_closes_over_its_requests_leaves_them(
    draft_folder: Path, in_parts: bool
) -> None:
    async def begin(worker: EngineWorker) -> None:
        call = begun(worker, greedy_request(max_new_tokens=100), [], in_parts=in_parts)
        leaving.append(asyncio.create_task(call))
        while (await worker.snapshot()).num_used_pages == 0:
            await asyncio.sleep(0)

    async def scenario() -> None:
        async with running_worker(draft_folder) as worker:
            loop = asyncio.new_event_loop()
            loop.set_exception_handler(lambda *_: None)  # it complains of the task
            await asyncio.to_thread(loop.run_until_complete, begin(worker))
            loop.close()
            (task,) = leaving
            task.get_coro().close()  # type: ignore[union-attr]  # as its collection would
            await baseline(worker)
            snapshot = await worker.snapshot()
            assert snapshot.finished == {"abort": 1}, snapshot.finished

    leaving: list[asyncio.Task[None]] = []
    asyncio.run(scenario())


@pytest.mark.parametrize("in_parts", [False, True])
def test_leaving_in_the_middle_gives_the_pages_back(draft_folder: Path, in_parts: bool) -> None:
    async def scenario() -> None:
        async with running_worker(draft_folder) as worker:
            events: list[TokenEvent] = []
            call = begun(worker, greedy_request(max_new_tokens=100), events, in_parts=in_parts)
            task = asyncio.create_task(call)
            while (await worker.snapshot()).num_used_pages == 0:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await baseline(worker)
            received = len(events)
            await collect_events(worker, greedy_request("b"))
            assert len(events) == received  # no event follows the cancellation

    asyncio.run(scenario())


def test_an_exception_of_a_callback_ends_its_request_and_no_other(draft_folder: Path) -> None:
    async def scenario() -> None:
        async with running_worker(draft_folder) as worker:

            def on_event(event: TokenEvent) -> None:
                raise ZeroDivisionError

            other = asyncio.create_task(
                collect_events(worker, greedy_request("other", max_new_tokens=40))
            )
            with pytest.raises(ZeroDivisionError):
                await worker.generate(greedy_request(max_new_tokens=100), on_event)
            assert sum(len(e.token_ids) for e in await other) == 40
            await baseline(worker)

    asyncio.run(scenario())


@pytest.mark.parametrize("delivers_after_launch", [False, True])
def test_a_loop_is_woken_once_per_step_for_all_its_requests(
    draft_folder: Path, delivers_after_launch: bool
) -> None:
    async def scenario() -> None:
        async with running_worker(
            draft_folder, delivers_after_launch=delivers_after_launch
        ) as worker:
            requests = [greedy_request(str(i), max_new_tokens=40, seed=i) for i in range(6)]
            with counted_wakes() as wakes:
                received = await asyncio.gather(*(collect_events(worker, r) for r in requests))
            steps = (await worker.snapshot()).num_steps
            assert len(wakes) <= steps + len(requests)  # and one for each admission
            assert sum(map(len, received)) > 2 * steps

    asyncio.run(scenario())


def test_a_whole_answer_wakes_its_loop_once(draft_folder: Path) -> None:
    async def scenario() -> None:
        async with running_worker(draft_folder) as worker:
            expected = await collect_events(worker, greedy_request(max_new_tokens=100))
            events: list[TokenEvent] = []
            with counted_wakes() as wakes:
                request = greedy_request(max_new_tokens=100)
                await worker.generate_whole(request, events)
            assert len(wakes) <= 2  # admitted, and all of it
            assert [e.token_ids for e in events] == [e.token_ids for e in expected]
            assert events[0].at < events[-1].at

    asyncio.run(scenario())


@pytest.mark.parametrize("delivers_after_launch", [False, True])
def test_cancelling_before_the_first_token_ends_the_request(
    draft_folder: Path, delivers_after_launch: bool
) -> None:
    async def scenario() -> None:
        async with running_worker(
            draft_folder, delivers_after_launch=delivers_after_launch, max_running_requests=1
        ) as worker:
            tasks = [
                asyncio.create_task(
                    collect_events(worker, greedy_request(str(i), max_new_tokens=100))
                )
                for i in range(4)
            ]
            await asyncio.sleep(0.05)
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(e, asyncio.CancelledError) for e in ended)
            await baseline(worker)

    asyncio.run(scenario())


@pytest.mark.parametrize("delivers_after_launch", [False, True])
def test_an_abort_by_id_ends_the_stream_with_that_reason(
    draft_folder: Path, delivers_after_launch: bool
) -> None:
    async def scenario() -> None:
        async with running_worker(
            draft_folder, delivers_after_launch=delivers_after_launch
        ) as worker:
            task = asyncio.create_task(collect_events(worker, greedy_request(max_new_tokens=100)))
            while (await worker.snapshot()).num_running == 0:
                await asyncio.sleep(0.005)
            assert await worker.abort("somebody else") == 0
            assert await worker.abort("a") == 1
            finish = (await task)[-1].finish
            assert finish is not None
            assert finish.reason is FinishReason.ABORT
            await baseline(worker)

    asyncio.run(scenario())


def test_a_refused_request_raises_before_its_first_event(draft_folder: Path) -> None:
    async def scenario() -> None:
        async with running_worker(draft_folder) as worker:
            with pytest.raises(RequestRejected, match="maximum context length"):
                await collect_events(worker, greedy_request(max_new_tokens=5000))
            assert len(await collect_events(worker, greedy_request())) > 0

    asyncio.run(scenario())


def test_an_observer_that_raises_is_removed_and_no_request_ends(
    draft_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    def breaks(snapshot: EngineSnapshot) -> None:
        seen.append("breaks")
        raise ZeroDivisionError

    def counts(snapshot: EngineSnapshot) -> None:
        seen.append("counts")

    async def scenario() -> None:
        async with running_worker(draft_folder, observers=(breaks, counts)) as worker:
            events = await collect_events(worker, greedy_request())
            assert sum(len(e.token_ids) for e in events) == 12
            assert worker.is_healthy()

    asyncio.run(scenario())
    assert seen.count("breaks") == 1
    assert seen.count("counts") > 1
    assert caplog.text.count("observer removed") == 1


@pytest.mark.parametrize("in_parts", [False, True])
def test_a_request_whose_code_raises_fails_alone(draft_folder: Path, in_parts: bool) -> None:
    class Scanner:
        def feed(self, token_id: int) -> str | None:
            raise ZeroDivisionError

    async def scenario() -> None:
        async with running_worker(draft_folder) as worker:
            other = asyncio.create_task(collect_events(worker, greedy_request("other")))
            broken = dataclasses.replace(greedy_request("broken"), stop_scanner=Scanner())
            with pytest.raises(RequestFailed, match="details of request broken"):
                await begun(worker, broken, [], in_parts=in_parts)
            assert sum(len(e.token_ids) for e in await other) == 12
            await baseline(worker)
            assert (await worker.snapshot()).finished == {"error": 1, "length": 1}

    asyncio.run(scenario())


def test_a_request_that_raises_at_admission_fails_alone(draft_folder: Path) -> None:
    async def scenario() -> None:
        async with running_worker(draft_folder) as worker:
            broken = dataclasses.replace(greedy_request("broken"), prompt_ids=(3, None))  # type: ignore[arg-type]
            with pytest.raises(RequestFailed, match="details of request broken"):
                await collect_events(worker, broken)
            assert len(await collect_events(worker, greedy_request("broken"))) > 0

    asyncio.run(scenario())


def test_when_the_loop_stops_no_caller_is_left_waiting(
    draft_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running_worker(draft_folder) as worker:
            await collect_events(worker, greedy_request())

            def explode(**_: object) -> list[TokenEvent]:
                raise RuntimeError("out of luck")

            monkeypatch.setattr(worker._engine, "step", explode)
            for i in range(3):  # those who wait, and those who come after
                with pytest.raises(EngineDead, match="the engine has stopped"):
                    await asyncio.wait_for(collect_events(worker, greedy_request(str(i))), 10)
            assert not worker.is_healthy()
            calls: list[Callable[[], Awaitable[object]]] = [
                worker.flush_cache,
                lambda: worker.abort(None),
                lambda: worker.set_context_kv("off"),
                worker.context_kv_status,
            ]
            for call in calls:
                with pytest.raises(EngineDead):
                    await asyncio.wait_for(call(), 10)
            await worker.snapshot()  # the last state

    asyncio.run(scenario())
    assert "the step loop stopped" in caplog.text
    assert "out of luck" in caplog.text


class ClosedOnTheWay:
    """An inbox that closes the engine while the first call is on its way in."""

    def __init__(self, worker: EngineWorker) -> None:
        self._worker, self._inbox = worker, worker._inbox

    def put(self, call: Callable[[], None]) -> None:
        self._worker._inbox = self._inbox
        self._worker.close()
        self._inbox.put(call)


def test_a_request_during_close_is_refused(draft_folder: Path) -> None:
    async def scenario() -> None:
        async with running_worker(draft_folder) as worker:
            worker._inbox = ClosedOnTheWay(worker)  # type: ignore[assignment]
            for _ in range(2):  # who comes in that moment, and who comes after
                with pytest.raises(EngineDead, match="closed"):
                    await asyncio.wait_for(collect_events(worker, greedy_request()), 10)

    asyncio.run(scenario())


def test_calls_that_wait_while_a_dead_engine_is_closed_are_refused(
    draft_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running_worker(draft_folder) as worker:
            monkeypatch.setattr(worker._engine, "step", None)
            with pytest.raises(EngineDead):
                await collect_events(worker, greedy_request())
            go_on = threading.Event()
            worker._inbox.put(go_on.wait)  # type: ignore[arg-type]
            waiting = [asyncio.create_task(worker.flush_cache()) for _ in range(2)]
            closing = asyncio.create_task(asyncio.to_thread(worker.close))
            while not worker._is_closing:
                await asyncio.sleep(0)
            go_on.set()
            ended = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10)
            assert [type(error) for error in ended] == [EngineDead, EngineDead]
            await closing

    asyncio.run(scenario())


def test_a_snapshot_does_not_wait_for_a_hanging_step(
    draft_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running_worker(draft_folder) as worker:
            step = worker._engine.step

            def hang(**given: Any) -> list[TokenEvent]:
                time.sleep(0.6)
                return step(**given)

            monkeypatch.setattr(worker._engine, "step", hang)
            task = asyncio.create_task(collect_events(worker, greedy_request(max_new_tokens=1)))
            await asyncio.sleep(0.4)
            called_at = time.monotonic()
            now = await worker.snapshot()
            assert time.monotonic() - called_at < 0.1
            assert now.seconds_since_progress > 0.2
            await task

    asyncio.run(scenario())


@pytest.mark.parametrize("delivers_after_launch", [False, True])
def test_draining_refuses_new_requests_and_lets_others_finish(
    draft_folder: Path, delivers_after_launch: bool
) -> None:
    async def scenario() -> None:
        async with running_worker(
            draft_folder, delivers_after_launch=delivers_after_launch
        ) as worker:
            task = asyncio.create_task(collect_events(worker, greedy_request(max_new_tokens=40)))
            while (await worker.snapshot()).num_running == 0:
                await asyncio.sleep(0.005)
            drained = asyncio.create_task(worker.drain(timeout_s=20))
            await asyncio.sleep(0)
            with pytest.raises(EngineDraining):
                await collect_events(worker, greedy_request("late"))
            assert await drained is True
            assert sum(len(e.token_ids) for e in await task) == 40

    asyncio.run(scenario())


def test_draining_ends_what_takes_too_long(draft_folder: Path) -> None:
    async def scenario() -> None:
        async with running_worker(draft_folder) as worker:
            task = asyncio.create_task(collect_events(worker, greedy_request(max_new_tokens=100)))
            while (await worker.snapshot()).num_running == 0:
                await asyncio.sleep(0.005)
            assert await worker.drain(timeout_s=0) is False
            finish = (await task)[-1].finish
            assert finish is not None
            assert finish.reason is FinishReason.ABORT

    asyncio.run(scenario())


def test_draining_does_not_wait_for_a_hanging_step(
    draft_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running_worker(draft_folder) as worker:
            is_stuck, may_go_on = threading.Event(), threading.Event()
            step = worker._engine.step

            def hang(**given: Any) -> list[TokenEvent]:
                is_stuck.set()
                may_go_on.wait(timeout=60)
                return step(**given)

            monkeypatch.setattr(worker._engine, "step", hang)
            task = asyncio.create_task(collect_events(worker, greedy_request(max_new_tokens=1)))
            while not is_stuck.is_set():
                await asyncio.sleep(0.005)
            try:
                assert await asyncio.wait_for(worker.drain(timeout_s=0.05), 10) is False
            finally:
                may_go_on.set()
            await task

    monkeypatch.setattr("engine.core.worker._STEP_S", 0.05)
    asyncio.run(scenario())


def test_draining_an_engine_that_dies_is_over(
    draft_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running_worker(draft_folder) as worker:
            step = worker._engine.step

            def die_late(**given: Any) -> list[TokenEvent]:
                time.sleep(0.05)
                if worker._is_draining:
                    time.sleep(0.1)  # drain polls meanwhile
                    raise RuntimeError("out of luck")
                return step(**given)

            monkeypatch.setattr(worker._engine, "step", die_late)
            task = asyncio.create_task(collect_events(worker, greedy_request(max_new_tokens=100)))
            while (await worker.snapshot()).num_running == 0:
                await asyncio.sleep(0.005)
            assert await worker.drain(timeout_s=20) is False
            with pytest.raises(EngineDead):
                await task

    asyncio.run(scenario())


def test_the_context_writer_is_switched_while_requests_run(draft_folder: Path) -> None:
    async def scenario() -> None:
        async with running_worker(draft_folder) as worker:
            expected = await collect_events(worker, greedy_request("first", max_new_tokens=60))
            task = asyncio.create_task(
                collect_events(worker, greedy_request("second", max_new_tokens=60))
            )
            assert (await worker.set_context_kv("off")).path == "per_layer"
            assert (await worker.set_context_kv("on")).path == "stacked"
            received = [t for e in await task for t in e.token_ids]
            assert received == [t for e in expected for t in e.token_ids]

    asyncio.run(scenario())


def test_the_time_without_a_request_is_idle_and_no_other(draft_folder: Path) -> None:
    async def scenario() -> None:
        async with running_worker(draft_folder) as worker:
            started = time.monotonic()
            await collect_events(worker, greedy_request("a"))
            first = (await worker.snapshot()).idle_seconds
            await asyncio.sleep(0.2)
            await collect_events(worker, greedy_request("b"))
            gap = (await worker.snapshot()).idle_seconds - first
            assert 0.1 < gap < time.monotonic() - started

    asyncio.run(scenario())
