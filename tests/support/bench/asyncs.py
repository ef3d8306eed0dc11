"""Runs asynchronous tests."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import ParamSpec

P = ParamSpec("P")


def in_a_loop(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run a test in a new event loop."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def wait() -> None:
            await test(*args, **kwargs)

        asyncio.run(wait())

    return run
