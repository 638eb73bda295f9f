"""Repeated reads of objects that arrived incomplete."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from farcall_runtime import envelope

_PAUSES_S = (0.1, 1.0)

T = TypeVar("T")


async def until_intact(read: Callable[[], Awaitable[T]]) -> T:
    """Read an object and check it; repeat both if it is not what its writer stored.

    A proxy can end a response early, or change it, with the status of a complete one. An object
    that another client has changed is still changed after the pauses.

    Raises:
        envelope.IntegrityError: The object is not what its writer stored.
    """
    for pause_s in _PAUSES_S:
        try:
            return await read()
        except envelope.IntegrityError:
            await asyncio.sleep(pause_s)
    return await read()
