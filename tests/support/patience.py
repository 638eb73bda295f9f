"""Waiting until something is true, however slow the machine is."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

#: Seconds until it counts as never; less than a test's own timeout, so this error is reported.
PATIENCE_S = 300.0
_POLL_S = 0.03


def until(condition: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """Look again and again until a condition is true; return what it then gives."""
    __tracebackhide__ = True  # the caller's line has the condition
    deadline = time.monotonic() + patience_s
    while not (found := condition()):
        assert time.monotonic() < deadline, _told(found, patience_s)
        time.sleep(_POLL_S)
    return found


async def until_async(
    condition: Callable[[], T | Awaitable[T]], patience_s: float = PATIENCE_S
) -> T:
    """The same for event loops, which go on between the looks; the condition may be async."""
    __tracebackhide__ = True
    deadline = time.monotonic() + patience_s
    while not (found := await _look(condition)):
        assert time.monotonic() < deadline, _told(found, patience_s)
        await asyncio.sleep(_POLL_S)
    return found


async def _look(condition: Callable[[], T | Awaitable[T]]) -> T:
    found = condition()
    return await found if inspect.isawaitable(found) else found


def _told(found: object, patience_s: float) -> str:
    return f"it has not become true in {patience_s:g} s; it last gave {found!r}"
