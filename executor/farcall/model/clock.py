"""Clock of an event loop: its time, limited waits, and back-off between attempts."""

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
    """Wait before the next attempt, with exponential back-off and jitter.

    Args:
        tries: Number of attempts so far.
        first_s: Maximum wait after the first attempt in seconds; the overall maximum is 5.
    """
    wait_s = min(_LONGEST_WAIT_S, first_s * 2 ** (tries - 1))
    await asyncio.sleep(wait_s * random.uniform(0.5, 1))  # noqa: S311  # no secret


async def within(limit_s: float, awaitable: Awaitable[T]) -> T:
    """Wait for an awaitable up to a limit in seconds, then cancel it.

    Before Python 3.12, `asyncio.wait_for` swallows a cancellation that arrives at the moment when
    the awaitable is done: a loop that should end continues, and callers that wait for its end wait
    forever.

    Raises:
        TimeoutError: The awaitable was not done in time.
        asyncio.CancelledError: The wait was cancelled, even if the awaitable is done.

    Source:
        https://github.com/python/cpython/issues/86296
    """
    waiting = asyncio.ensure_future(awaitable)
    try:
        await asyncio.wait([waiting], timeout=limit_s)
        if waiting.done():
            return waiting.result()
        raise TimeoutError
    finally:
        if not waiting.done():
            waiting.cancel()
            await asyncio.wait([waiting])
        if not waiting.cancelled():
            waiting.exception()  # avoids a warning about an exception that was never retrieved
