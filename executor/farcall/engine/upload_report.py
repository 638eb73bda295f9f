"""Lines on stderr about uploads that take long."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable

_FIRST_S, _NEXT_S = 5.0, 10.0


@contextlib.asynccontextmanager
async def reported(what: str, size_bytes: int = 0) -> AsyncIterator[Callable[[int], object]]:
    """Report how much was uploaded, while the block takes long.

    Yields a function that must be called with the number of bytes since its last call.

    Args:
        what: The data that is uploaded.
        size_bytes: Its size; 0 if it is unknown.
    """
    sent = 0
    of = f" of {size_bytes / 1e6:.0f}" if size_bytes else ""

    def record(size: int) -> None:
        nonlocal sent
        sent += size

    async def report() -> None:
        await asyncio.sleep(_FIRST_S)
        while True:
            if sent:
                sys.stderr.write(f"farcall: {what}: {sent / 1e6:.0f}{of} MB sent\n")
                sys.stderr.flush()
            await asyncio.sleep(_NEXT_S)

    reporting = asyncio.ensure_future(report())
    try:
        yield record
    finally:
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)
