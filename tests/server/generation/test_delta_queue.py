"""What answers gain reaches its reader, and silence is told at the cost of one timer."""

import asyncio

import pytest

from server.generation.delta_queue import DeltaQueue, KeepAlive


def test_a_reader_that_waits_too_long_is_told_of_silence_again_and_again() -> None:
    async def scenario() -> list[list[int] | KeepAlive]:
        inbox: DeltaQueue[int] = DeltaQueue(keepalive_s=0.02)
        heard = [await inbox.get(), await inbox.get()]
        inbox.put(7)
        heard.append(await inbox.get())
        inbox.close()
        return heard

    assert asyncio.run(scenario()) == [KeepAlive(), KeepAlive(), [7]]


def test_a_reader_that_is_busy_has_not_heard_silence() -> None:
    async def scenario() -> list[int] | KeepAlive:
        inbox: DeltaQueue[int] = DeltaQueue(keepalive_s=0.02)
        await asyncio.sleep(0.1)  # the connection takes no more bytes
        inbox.put(7)
        heard = await inbox.get()
        inbox.close()
        return heard

    assert asyncio.run(scenario()) == [7]


def test_a_closed_inbox_leaves_no_timer_behind() -> None:
    async def scenario() -> bool:
        inbox: DeltaQueue[int] = DeltaQueue(keepalive_s=0.01)
        inbox.close()
        try:
            await asyncio.wait_for(inbox.get(), timeout=0.05)
        except TimeoutError:
            return True
        return False

    assert asyncio.run(scenario())


def test_a_reader_takes_all_that_is_there_and_an_error_comes_behind_it() -> None:
    async def scenario() -> list[list[int] | KeepAlive]:
        inbox: DeltaQueue[int] = DeltaQueue(keepalive_s=None)
        inbox.put(1)
        inbox.put(2)
        inbox.fail(KeyError("first"))
        inbox.fail(ValueError("second"))
        heard = [await inbox.get()]
        with pytest.raises(KeyError, match="first"):
            await inbox.get()
        return heard

    assert asyncio.run(scenario()) == [[1, 2]]


def test_what_comes_after_an_error_does_not_put_it_off() -> None:
    async def scenario() -> list[int] | KeepAlive:
        inbox: DeltaQueue[int] = DeltaQueue(keepalive_s=None)
        inbox.put(1)
        inbox.fail(KeyError("one of two answers"))
        inbox.put(2)  # of the other one
        heard = await inbox.get()
        inbox.put(3)  # while the connection takes what was heard
        with pytest.raises(KeyError, match="one of two answers"):
            await inbox.get()
        return heard

    assert asyncio.run(scenario()) == [1]


def test_a_reader_that_waits_is_woken_once_for_all_that_comes_at_once() -> None:
    async def scenario() -> list[int] | KeepAlive:
        inbox: DeltaQueue[int] = DeltaQueue(keepalive_s=None)
        reader = asyncio.create_task(inbox.get())
        await asyncio.sleep(0)
        for item in range(3):
            inbox.put(item)
        return await reader

    assert asyncio.run(scenario()) == [0, 1, 2]
