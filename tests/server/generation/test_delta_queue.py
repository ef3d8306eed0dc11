"""DeltaQueue: batches, errors and keep-alive."""

import asyncio

import pytest

from server.generation.delta_queue import DeltaQueue, KeepAlive


def test_a_waiting_reader_gets_repeated_keep_alives() -> None:
    async def scenario() -> list[list[int] | KeepAlive]:
        queue: DeltaQueue[int] = DeltaQueue(keepalive_s=0.02)
        got = [await queue.get(), await queue.get()]
        queue.put(7)
        got.append(await queue.get())
        queue.close()
        return got

    assert asyncio.run(scenario()) == [KeepAlive(), KeepAlive(), [7]]


def test_a_busy_reader_gets_no_keep_alive() -> None:
    async def scenario() -> list[int] | KeepAlive:
        queue: DeltaQueue[int] = DeltaQueue(keepalive_s=0.02)
        await asyncio.sleep(0.1)  # the connection takes no more bytes
        queue.put(7)
        got = await queue.get()
        queue.close()
        return got

    assert asyncio.run(scenario()) == [7]


def test_closing_cancels_the_timer() -> None:
    async def scenario() -> bool:
        queue: DeltaQueue[int] = DeltaQueue(keepalive_s=0.01)
        queue.close()
        try:
            await asyncio.wait_for(queue.get(), timeout=0.05)
        except TimeoutError:
            return True
        return False

    assert asyncio.run(scenario())


def test_a_reader_gets_all_items_before_the_first_error() -> None:
    async def scenario() -> list[list[int] | KeepAlive]:
        queue: DeltaQueue[int] = DeltaQueue(keepalive_s=None)
        queue.put(1)
        queue.put(2)
        queue.fail(KeyError("first"))
        queue.fail(ValueError("second"))
        got = [await queue.get()]
        with pytest.raises(KeyError, match="first"):
            await queue.get()
        return got

    assert asyncio.run(scenario()) == [[1, 2]]


def test_items_after_an_error_do_not_delay_it() -> None:
    async def scenario() -> list[int] | KeepAlive:
        queue: DeltaQueue[int] = DeltaQueue(keepalive_s=None)
        queue.put(1)
        queue.fail(KeyError("one of two requests"))
        queue.put(2)  # of the other one
        got = await queue.get()
        queue.put(3)  # while the reader sends the first batch
        with pytest.raises(KeyError, match="one of two requests"):
            await queue.get()
        return got

    assert asyncio.run(scenario()) == [1]


def test_a_waiting_reader_gets_items_put_at_once_together() -> None:
    async def scenario() -> list[int] | KeepAlive:
        queue: DeltaQueue[int] = DeltaQueue(keepalive_s=None)
        reader = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        for item in range(3):
            queue.put(item)
        return await reader

    assert asyncio.run(scenario()) == [0, 1, 2]
