"""Timeouts: waiting with a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def within(limit_s: float, awaitable: Awaitable[T]) -> T:
    """Wait for something, for some seconds at most; what is not done by then is cancelled.

    Before Python 3.12 `asyncio.wait_for` swallows a cancel that comes in the moment in which
    what is waited for is done: a loop that is to end by a cancel goes on, and who waits for its
    end waits for ever.

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
