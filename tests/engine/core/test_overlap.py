"""Where a device computes by itself, the host has its other work done while it does."""

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
    """What each caller is told: tokens, or the error that ends its stream."""
    tell = EventDispatcher.tell

    def noted(self: EventDispatcher) -> None:
        for _, item in self._untold:
            if isinstance(item, TokenEvent):
                device.log.append(f"tell {item.request_id}{item.token_ids[0]}")
        tell(self)

    async def ask(worker: EngineWorker, name: str, count: int) -> list[Any]:
        told: list[Any] = []
        try:
            request = Request(name, (1,), EngineSamplingParams(max_new_tokens=count))
            await worker.generate(request, lambda event: told.append(event.token_ids[0]))
        except EngineDead as error:
            told.append(type(error))
        return told

    async def scenario() -> list[list[Any]]:
        worker = EngineWorker(device, delivers_after_launch=delivers_after_launch)  # type: ignore[arg-type]
        try:
            return await asyncio.gather(*(ask(worker, *each) for each in requests.items()))
        finally:
            worker.close()

    with patch.object(EventDispatcher, "tell", noted):
        return dict(zip(requests, asyncio.run(scenario()), strict=True))


def test_events_go_out_while_the_device_is_at_the_next_pass() -> None:
    device = FakeDevice()
    assert run(device, {"a": 3}, delivers_after_launch=True) == {"a": [1, 2, 3]}
    assert device.log == [
        *("launch 1", "wait 1"),
        *("launch 2", "tell a1", "wait 2"),
        *("launch 3", "tell a2", "wait 3"),
        "tell a3",  # nothing follows that it could be told beside
    ]


def test_where_a_pass_is_the_hosts_own_work_events_go_out_at_once() -> None:
    device = FakeDevice()
    assert run(device, {"a": 2}, delivers_after_launch=False) == {"a": [1, 2]}
    assert device.log == ["launch 1", "wait 1", "tell a1", "launch 2", "wait 2", "tell a2"]


@pytest.mark.parametrize("delivers_after_launch", [False, True])
def test_everybody_is_told_everything_in_order(delivers_after_launch: bool) -> None:
    requests = {"a": 1, "b": 5, "c": 2}
    told = run(FakeDevice(), requests, delivers_after_launch=delivers_after_launch)
    assert told == {name: list(range(1, count + 1)) for name, count in requests.items()}


@pytest.mark.parametrize("delivers_after_launch", [False, True])
def test_what_happened_before_the_engine_died_is_told_before_the_death(
    delivers_after_launch: bool, caplog: pytest.LogCaptureFixture
) -> None:
    device = FakeDevice()
    device.breaks_in_step = 3
    assert run(device, {"a": 9}, delivers_after_launch=delivers_after_launch) == {
        "a": [1, 2, EngineDead]
    }
    assert "the device is gone" in caplog.text


def test_the_last_word_is_not_kept_when_everybody_else_leaves() -> None:
    """One request ends in a step after which the only other one is abandoned."""

    async def scenario() -> None:
        device = FakeDevice()
        worker = EngineWorker(device, delivers_after_launch=True)  # type: ignore[arg-type]
        try:
            others: asyncio.Queue[TokenEvent] = asyncio.Queue()
            request = Request("other", (1,), EngineSamplingParams(max_new_tokens=10**9))
            other = asyncio.create_task(worker.generate(request, others.put_nowait))
            await others.get()
            told: list[TokenEvent] = []

            def hear(event: TokenEvent) -> None:
                told.append(event)
                other.cancel()

            await worker.generate(
                Request("mine", (1,), EngineSamplingParams(max_new_tokens=3)), hear
            )
            assert [event.token_ids for event in told] == [(1,), (2,), (3,)]
        finally:
            worker.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_whole_answers_that_end_together_let_other_work_in_between() -> None:
    async def scenario() -> list[str]:
        log: list[str] = []
        loop = asyncio.get_running_loop()
        telling = EventDispatcher()

        async def ask(name: str) -> None:
            events: list[TokenEvent] = []
            listener = Listener(events.append, in_parts=False)
            listeners[name] = listener
            await listener.until_over()
            log.extend(f"{name}{event.token_ids[0]}" for event in events)
            loop.call_soon(log.append, "other")

        listeners: dict[str, Listener] = {}
        asking = [asyncio.create_task(ask(name)) for name in "ab"]
        await asyncio.sleep(0)
        for token_id, finish in ((1, None), (2, ENDED)):
            for name, listener in listeners.items():
                telling.add(listener, TokenEvent(name, (token_id,), finish))
        telling.tell()
        await asyncio.gather(*asking)
        return log

    assert asyncio.run(scenario())[:5] == ["a1", "a2", "other", "b1", "b2"]


class Everything:
    """A row mask that allows every token."""

    def fill(self, draft_ids: Any, words: Any) -> None:
        words[:] = EVERYTHING

    def commit(self, token_id: int) -> bool:
        return False


@pytest.mark.parametrize(
    ("params", "is_masked", "expected"),
    [
        ({}, False, ["launch", "decide", "meanwhile", "wait"]),
        ({"num_logprobs": 2}, False, ["launch", "decide", "meanwhile", "wait"]),
        # Here the host waits for the drafts in order to decide.
        ({}, True, ["launch", "meanwhile", "decide", "wait"]),
    ],
    ids=["plain", "log probabilities", "mask"],
)
def test_other_work_is_done_when_all_is_launched_and_the_host_would_wait(
    params: dict[str, Any], is_masked: bool, expected: list[str], tmp_path: Path
) -> None:
    log: list[str] = []
    forward, decide, download = TargetModel.forward, verifier._decide, verifier.download

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            log.append(name)
            return function(*args)

        return call

    built = tiny_engine(draft_folder=write_tiny_draft(tmp_path), prefill_chunk_tokens=2)
    with (
        torch.inference_mode(),
        patch.object(TargetModel, "forward", noted("launch", forward)),
        patch.object(verifier, "_decide", noted("decide", decide)),
        patch.object(verifier, "download", noted("wait", download)),
    ):
        mask = Everything() if is_masked else None
        asked = EngineSamplingParams(max_new_tokens=6, **params)
        built.engine.add(Request("a", (5, 9, 3), asked, token_mask=mask))
        while not built.engine.is_idle:
            built.engine.step(meanwhile=lambda: log.append("meanwhile"))
        built.engine.step(meanwhile=lambda: log.append("nothing to compute"))
    assert log[:2] == ["launch", "meanwhile"], "a chunk of a prompt says nothing"
    assert log[2:6] == expected
    assert log[2:] == expected * (len(log[2:]) // 4)
