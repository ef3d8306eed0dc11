"""What answers gain reaches its reader, and silence is told at the cost of one timer."""

import asyncio

from server.inbox import Inbox, Silence


def test_a_reader_that_waits_too_long_is_told_of_silence_again_and_again() -> None:
    async def scenario() -> list[int | Silence]:
        inbox: Inbox[int] = Inbox(silence_s=0.02)
        heard = [await inbox.get(), await inbox.get()]
        inbox.put(7)
        heard.append(await inbox.get())
        inbox.close()
        return heard

    assert asyncio.run(scenario()) == [Silence(), Silence(), 7]


def test_a_reader_that_is_busy_has_not_heard_silence() -> None:
    async def scenario() -> int | Silence:
        inbox: Inbox[int] = Inbox(silence_s=0.02)
        await asyncio.sleep(0.1)  # the connection takes no more bytes
        inbox.put(7)
        heard = await inbox.get()
        inbox.close()
        return heard

    assert asyncio.run(scenario()) == 7


def test_a_closed_inbox_leaves_no_timer_behind() -> None:
    async def scenario() -> bool:
        inbox: Inbox[int] = Inbox(silence_s=0.01)
        inbox.close()
        try:
            await asyncio.wait_for(inbox.get(), timeout=0.05)
        except TimeoutError:
            return True
        return False

    assert asyncio.run(scenario())
