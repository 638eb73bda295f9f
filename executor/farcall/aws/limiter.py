"""Rate limiter for API calls, which finds the account's limit by itself. No I/O but sleeping."""

from __future__ import annotations

import asyncio
import random


class Limiter:
    """Spaces calls evenly; slows down at each refusal, and speeds up again as time passes.

    AWS Batch allows 50 calls a second for an account and answers more with 429. Everybody who
    uses the account shares these 50 and sees nothing of the others but these answers, so the fair
    pace cannot be known, only approached: a refusal takes a share of the pace, and time adds the
    same to everybody's. Who is faster is refused more often and loses more by it, so all clients
    come to the same pace. The shares taken are small, because the more refusals decide about a
    client's pace, the less it depends on whom they happen to hit.

    Every second adds one call a second; after some seconds without any refusal it adds much more,
    because then the others have probably stopped.

    Args:
        most: Calls a second when nothing else uses the account.

    Source:
        https://repost.aws/knowledge-center/aws-batch-requests-error
    """

    _LEAST = 0.5
    _KEPT = 0.85
    _PATIENCE_S = 5.0
    """After this time each further second adds visibly more than the one before."""
    _LATE_S = 0.01
    """By so much a busy event loop may wake up late without delaying all turns to come."""

    def __init__(self, most: float) -> None:
        self._most = most
        self._base = most
        self._refused = 0.0
        self._next = 0.0
        self._line = asyncio.Lock()

    @property
    def pace(self) -> float:
        """Calls a second at this moment."""
        waited = _now() - self._refused
        return min(self._most, self._base + waited + (waited / self._PATIENCE_S) ** 4)

    async def turn(self) -> float:
        """Wait for a turn; return the pace at which it was given, for `throttled`."""
        async with self._line:  # one behind the other, so that a 429 slows down those who wait
            begun = _now()
            while (wait := self._next - _now()) > 0:  # noqa: ASYNC110  # may grow
                await asyncio.sleep(wait)
            pace = self.pace
            due = max(begun, self._next, _now() - self._LATE_S)
            self._next = due + 1 / pace
            return pace

    def throttled(self, pace: float) -> None:
        """Note that a call was refused for coming too fast.

        What counts is the pace at which it was sent. So of several calls on their way at once,
        all refused, only the first slows the others down.

        Args:
            pace: What its `turn` returned.
        """
        slower = max(self._LEAST, self._KEPT * pace)
        if slower >= self.pace:
            return
        now = _now()
        self._base, self._refused = slower, now
        # Clients that were refused together are not to come again together.
        pause = random.uniform(0.5, 1) / slower  # noqa: S311  # no secret
        self._next = max(self._next, now + pause)


def _now() -> float:
    return asyncio.get_running_loop().time()
