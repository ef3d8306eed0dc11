"""Events are delivered while an asynchronous device computes."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from engine import EngineDead, EngineSamplingParams, Request, TokenEvent
from engine.core.event_dispatch import EventDispatcher, Listener
from engine.core.worker import EngineWorker
from engine.runner.target_model import TargetModel
from engine.sampling import verify_step as verifier
from engine.sampling.token_masks import EVERYTHING
from tests.support.engine.fake_device import ENDED, FakeDevice
from tests.support.engine.tiny_models import tiny_engine, write_tiny_draft


def run(
    device: FakeDevice, requests: dict[str, int], *, delivers_after_launch: bool
) -> dict[str, list[Any]]:
    """Return what each caller receives: tokens, or the error that ends its stream."""
    flush = EventDispatcher.flush

    def noted(self: EventDispatcher) -> None:
        for _, item in self._pending:
            if isinstance(item, TokenEvent):
                device.log.append(f"deliver {item.request_id}{item.token_ids[0]}")
        flush(self)

    async def generate(worker: EngineWorker, name: str, count: int) -> list[Any]:
        received: list[Any] = []
        try:
            request = Request(name, (1,), EngineSamplingParams(max_new_tokens=count))
            await worker.generate(request, lambda event: received.append(event.token_ids[0]))
        except EngineDead as error:
            received.append(type(error))
        return received

    async def scenario() -> list[list[Any]]:
        worker = EngineWorker(device, delivers_after_launch=delivers_after_launch)  # type: ignore[arg-type]
        try:
            return await asyncio.gather(*(generate(worker, *each) for each in requests.items()))
        finally:
            worker.close()

    with patch.object(EventDispatcher, "flush", noted):
        return dict(zip(requests, asyncio.run(scenario()), strict=True))


def test_events_go_out_while_the_device_is_at_the_next_pass() -> None:
    device = FakeDevice()
    assert run(device, {"a": 3}, delivers_after_launch=True) == {"a": [1, 2, 3]}
    assert device.log == [
        *("launch 1", "wait 1"),
        *("launch 2", "deliver a1", "wait 2"),
        *("launch 3", "deliver a2", "wait 3"),
        "deliver a3",  # no step follows
    ]


def test_where_a_pass_is_the_hosts_own_work_events_go_out_at_once() -> None:
    device = FakeDevice()
    assert run(device, {"a": 2}, delivers_after_launch=False) == {"a": [1, 2]}
    assert device.log == ["launch 1", "wait 1", "deliver a1", "launch 2", "wait 2", "deliver a2"]


@pytest.mark.parametrize("delivers_after_launch", [False, True])
def test_every_caller_receives_all_its_events_in_order(delivers_after_launch: bool) -> None:
    requests = {"a": 1, "b": 5, "c": 2}
    received = run(FakeDevice(), requests, delivers_after_launch=delivers_after_launch)
    assert received == {name: list(range(1, count + 1)) for name, count in requests.items()}


@pytest.mark.parametrize("delivers_after_launch", [False, True])
def test_events_before_the_engines_death_are_delivered_before_it(
    delivers_after_launch: bool, caplog: pytest.LogCaptureFixture
) -> None:
    device = FakeDevice()
    device.breaks_in_step = 3
    assert run(device, {"a": 9}, delivers_after_launch=delivers_after_launch) == {
        "a": [1, 2, EngineDead]
    }
    assert "the device is gone" in caplog.text


def test_the_last_event_is_delivered_when_all_other_requests_leave() -> None:
    """One request ends in a step after which the only other one is abandoned."""

    async def scenario() -> None:
        device = FakeDevice()
        worker = EngineWorker(device, delivers_after_launch=True)  # type: ignore[arg-type]
        try:
            others: asyncio.Queue[TokenEvent] = asyncio.Queue()
            request = Request("other", (1,), EngineSamplingParams(max_new_tokens=10**9))
            other = asyncio.create_task(worker.generate(request, others.put_nowait))
            await others.get()
            received: list[TokenEvent] = []

            def on_event(event: TokenEvent) -> None:
                received.append(event)
                other.cancel()

            await worker.generate(
                Request("mine", (1,), EngineSamplingParams(max_new_tokens=3)), on_event
            )
            assert [event.token_ids for event in received] == [(1,), (2,), (3,)]
        finally:
            worker.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_between_whole_answers_that_end_together_the_loop_runs_other_callbacks() -> None:
    async def scenario() -> list[str]:
        log: list[str] = []
        loop = asyncio.get_running_loop()
        dispatcher = EventDispatcher()

        async def generate(name: str) -> None:
            events: list[TokenEvent] = []
            listener = Listener(events.append, in_parts=False)
            listeners[name] = listener
            await listener.until_over()
            log.extend(f"{name}{event.token_ids[0]}" for event in events)
            loop.call_soon(log.append, "other")

        listeners: dict[str, Listener] = {}
        tasks = [asyncio.create_task(generate(name)) for name in "ab"]
        await asyncio.sleep(0)
        for token_id, finish in ((1, None), (2, ENDED)):
            for name, listener in listeners.items():
                dispatcher.add(listener, TokenEvent(name, (token_id,), finish))
        dispatcher.flush()
        await asyncio.gather(*tasks)
        return log

    assert asyncio.run(scenario())[:5] == ["a1", "a2", "other", "b1", "b2"]


class Everything:
    """A token mask that allows every token."""

    def fill(self, draft_ids: Any, words: Any) -> None:
        words[:] = EVERYTHING

    def commit(self, token_id: int) -> bool:
        return False


@pytest.mark.parametrize(
    ("params", "is_masked", "expected"),
    [
        ({}, False, ["launch", "verify", "meanwhile", "wait"]),
        ({"num_logprobs": 2}, False, ["launch", "verify", "meanwhile", "wait"]),
        # Here the host waits for the drafts in order to verify.
        ({}, True, ["launch", "meanwhile", "verify", "wait"]),
    ],
    ids=["plain", "log probabilities", "mask"],
)
def test_other_work_runs_when_all_is_launched_and_the_host_would_wait(
    params: dict[str, Any], is_masked: bool, expected: list[str], tmp_path: Path
) -> None:
    log: list[str] = []
    forward, verify, download = TargetModel.forward, verifier.verify_greedy, verifier.download

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            log.append(name)
            return function(*args)

        return call

    built = tiny_engine(draft_folder=write_tiny_draft(tmp_path), prefill_chunk_tokens=2)
    with (
        torch.inference_mode(),
        patch.object(TargetModel, "forward", noted("launch", forward)),
        patch.object(verifier, "verify_greedy", noted("verify", verify)),
        patch.object(verifier, "download", noted("wait", download)),
    ):
        mask = Everything() if is_masked else None
        sampling = EngineSamplingParams(max_new_tokens=6, **params)
        built.engine.add(Request("a", (5, 9, 3), sampling, token_mask=mask))
        while not built.engine.is_idle:
            built.engine.step(meanwhile=lambda: log.append("meanwhile"))
        built.engine.step(meanwhile=lambda: log.append("nothing to compute"))
    assert log[:2] == ["launch", "meanwhile"], "a prompt chunk commits no token"
    assert log[2:6] == expected
    assert log[2:] == expected * (len(log[2:]) // 4)
