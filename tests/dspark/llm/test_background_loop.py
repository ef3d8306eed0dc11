"""Coroutines of a background loop return, raise and end with it, and never hang a caller."""

import asyncio
import threading

import pytest

from dspark.llm.background_loop import BackgroundLoop


@pytest.fixture
def loop() -> "BackgroundLoop":
    return BackgroundLoop(name="loop")


async def _value(value: int) -> int:
    await asyncio.sleep(0)
    return value


def test_results_and_errors_come_back(loop: BackgroundLoop) -> None:
    async def fail() -> None:
        raise KeyError("found")

    assert loop.run(_value(3)) == 3
    with pytest.raises(KeyError, match="found"):
        loop.run(fail())
    loop.close()


def test_it_serves_callers_that_run_a_loop_themselves(loop: BackgroundLoop) -> None:
    async def in_a_notebook() -> int:
        return loop.run(_value(4))

    assert asyncio.run(in_a_notebook()) == 4
    loop.close()


def test_a_closed_loop_refuses(loop: BackgroundLoop) -> None:
    loop.close()
    loop.close()
    with pytest.raises(RuntimeError, match="this loop is closed"):
        loop.run(_value(3))
    loop.run_unattended(_value(3))


def test_closing_ends_what_runs(loop: BackgroundLoop) -> None:
    has_begun, ended = threading.Event(), []

    async def forever() -> None:
        has_begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("cancelled")

    def wait() -> None:
        with pytest.raises(RuntimeError, match="this loop is closed"):
            loop.run(forever())
        ended.append("refused")

    caller = threading.Thread(target=wait)
    caller.start()
    assert has_begun.wait(10)
    loop.close()
    caller.join(10)
    assert ended == ["cancelled", "refused"]
