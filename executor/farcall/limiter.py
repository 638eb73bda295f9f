"""A pace for API calls that finds the account's limit by itself. No I/O but sleeping."""

from __future__ import annotations

import asyncio
import random
import time


class Limiter:
    """Spaces calls evenly; slows down when told of throttling, and speeds up again slowly.

    AWS Batch allows 50 calls a second for an account and answers more with 429. Everybody who
    uses the account shares these 50, so the fair pace is not known beforehand: halving it on a
    429 and adding a little with each success makes all clients meet near an equal share.

    Args:
        most: Calls a second when nothing else uses the account.

    Source:
        https://repost.aws/knowledge-center/aws-batch-requests-error
    """

    _LEAST = 0.2
    _STEP = 0.5

    def __init__(self, most: float) -> None:
        self._most = most
        self._rate = most
        self._next = 0.0
        self._slowed = 0.0
        self._line = asyncio.Lock()

    async def turn(self) -> None:
        """Wait for a turn."""
        async with self._line:  # one behind the other, so that a 429 slows down those who wait
            while (wait := self._next - time.monotonic()) > 0:  # noqa: ASYNC110  # may grow
                await asyncio.sleep(wait)
            self._next = time.monotonic() + 1 / self._rate

    def passed(self) -> None:
        """Note that a call got through."""
        self._rate = min(self._most, self._rate + self._STEP)

    def throttled(self) -> None:
        """Note a 429. Of several that arrive together only the first counts."""
        now = time.monotonic()
        if now - self._slowed < 1 / self._rate + 0.1:
            return
        self._slowed = now
        self._rate = max(self._LEAST, self._rate / 2)
        self._next = now + random.uniform(0.5, 1) / self._rate  # noqa: S311  # jitter, no secret
