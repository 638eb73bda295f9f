"""Clock of an event loop: its time, waiting with a bound, and back-off between tries."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from typing import TypeVar

_LONGEST_WAIT_S = 5.0

T = TypeVar("T")


def now() -> float:
    """Return the time of the running event loop in seconds."""
    return asyncio.get_running_loop().time()


async def back_off(tries: int, first_s: float) -> None:
    """Wait before the next try: twice as long each time, and not for the same time as others.

    Args:
        tries: How many there were.
        first_s: How many seconds at most after the first; never more than 5.
    """
    wait_s = min(_LONGEST_WAIT_S, first_s * 2 ** (tries - 1))
    await asyncio.sleep(wait_s * random.uniform(0.5, 1))  # noqa: S311  # no secret


async def within(limit_s: float, awaitable: Awaitable[T]) -> T:
    """Wait for something, for some seconds at most; what is not done by then is cancelled.

    Before Python 3.12 `asyncio.wait_for` swallows a cancel that comes in the moment in which
    what is waited for is done: a loop that is to end by a cancel goes on, and who waits for its
    end waits forever.

    Args:
        limit_s: How many seconds.
        awaitable: What is waited for.

    Raises:
        asyncio.TimeoutError: It is not done.
        asyncio.CancelledError: The wait was cancelled, whatever it waited for.

    Source:
        https://github.com/python/cpython/issues/86296
    """
    waiting = asyncio.ensure_future(awaitable)
    try:
        await asyncio.wait([waiting], timeout=limit_s)
        if waiting.done():
            return waiting.result()
        raise asyncio.TimeoutError
    finally:
        if not waiting.done():
            waiting.cancel()
            await asyncio.wait([waiting])
        if not waiting.cancelled():
            waiting.exception()  # where nobody is told of it any more, it is no warning either
