"""Waiting for conditions with a timeout that is long enough for slow machines."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

#: Timeout of a wait in seconds; less than a test's own timeout, so that this error is reported.
PATIENCE_S = 300.0
_POLL_S = 0.03


def until(condition: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """Poll until a condition is true; return its value."""
    __tracebackhide__ = True  # the caller's line has the condition
    deadline = time.monotonic() + patience_s
    while not (found := condition()):
        assert time.monotonic() < deadline, _timeout_message(found, patience_s)
        time.sleep(_POLL_S)
    return found


async def until_async(
    condition: Callable[[], T | Awaitable[T]], patience_s: float = PATIENCE_S
) -> T:
    """Poll like `until`, but in an event loop; the condition may be async."""
    __tracebackhide__ = True
    deadline = time.monotonic() + patience_s
    while not (found := await _look(condition)):
        assert time.monotonic() < deadline, _timeout_message(found, patience_s)
        await asyncio.sleep(_POLL_S)
    return found


async def _look(condition: Callable[[], T | Awaitable[T]]) -> T:
    found = condition()
    return await found if inspect.isawaitable(found) else found


def _timeout_message(found: object, patience_s: float) -> str:
    return f"the condition is not true after {patience_s:g} s; its last value is {found!r}"
