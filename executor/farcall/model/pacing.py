"""Pace, count and retries of requests to a service. No I/O except waits."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections import deque

from farcall.model import clock

_log = logging.getLogger("farcall")

_MINUTE_S = 60.0
FIRST_WAIT_S = 0.2
"""Maximum delay before the first retry in seconds."""

_LOG_AFTER_S, _LOG_INTERVAL_S = 10.0, 30.0
"""Time in seconds from which a failing request is logged, and interval between log messages.

Most retries are shorter; their callers report them.
"""


class Limiter:
    """Spaces calls evenly; slows down if throttled, and speeds up again over time.

    AWS Batch allows 50 calls per second and account, and responds to more with 429. All users of
    the account share these calls and observe each other only through these responses, so the fair
    pace cannot be known, only approached: throttling removes a share of the pace, and time adds
    the same amount to every client's. A faster client is throttled more often and loses more each
    time, so all clients approach the same pace. The shares are small, because the more responses
    determine a client's pace, the less it depends on chance.

    Each second adds one call per second; after some seconds without throttling it adds much more,
    because the other clients have probably stopped.

    Args:
        most: Maximum calls per second, if no other client uses the account.

    Source:
        https://repost.aws/knowledge-center/aws-batch-requests-error
    """

    _LEAST = 0.5
    _KEPT = 0.85
    _PATIENCE_S = 5.0
    """Time in seconds after which the pace increases noticeably faster."""
    _LATE_S = 0.01
    """Time in seconds by which a late wake-up does not delay later turns."""

    def __init__(self, most: float) -> None:
        self._most = most
        self._base = most
        self._refused = 0.0
        self._next = 0.0
        self._line = asyncio.Lock()

    @property
    def pace(self) -> float:
        """Current calls per second."""
        waited = clock.now() - self._refused
        return min(self._most, self._base + waited + (waited / self._PATIENCE_S) ** 4)

    async def turn(self) -> float:
        """Wait for a turn; return its pace, for `throttled`."""
        async with self._line:  # in sequence, so that a 429 slows down the waiting calls
            begun = clock.now()
            while (wait := self._next - clock.now()) > 0:  # noqa: ASYNC110  # may grow
                await asyncio.sleep(wait)
            pace = self.pace
            due = max(begun, self._next, clock.now() - self._LATE_S)
            self._next = due + 1 / pace
            return pace

    def throttled(self, pace: float) -> None:
        """Record that a call was throttled.

        The pace at which it was sent counts: if several concurrent calls are throttled, only the
        first one slows the others down.
        """
        slower = max(self._LEAST, self._KEPT * pace)
        if slower >= self.pace:
            return
        now = clock.now()
        self._base, self._refused = slower, now
        # Jitter, so that clients that were throttled together do not return together.
        pause = random.uniform(0.5, 1) / slower  # noqa: S311  # no secret
        self._next = max(self._next, now + pause)


class RetryLog:
    """Log of failing requests: one message for all requests that share this object."""

    def __init__(self) -> None:
        self._logged_at = -math.inf

    def record(self, error: Exception, spent_s: float) -> None:
        """Log that a request has been failing for some time."""
        if spent_s >= _LOG_AFTER_S and clock.now() - self._logged_at >= _LOG_INTERVAL_S:
            self._logged_at = clock.now()
            _log.warning("%s; retrying for %.0f s", error, spent_s)


class Retries:
    """Retries of one request.

    Args:
        limit_s: Maximum time from the first failure to the last retry, in seconds; the first
            retry is always made.
        log: Log that several requests share.

    Attributes:
        count: Number of failed attempts.
    """

    def __init__(self, limit_s: float, log: RetryLog | None = None) -> None:
        self.count = 0
        self._limit_s = limit_s
        self._log = log or RetryLog()
        self._since: float | None = None

    @property
    def spent_s(self) -> float:
        """Time since the first failure in seconds."""
        return 0.0 if self._since is None else clock.now() - self._since

    async def wait(
        self, error: Exception, *, may_pass: bool, first_s: float = FIRST_WAIT_S
    ) -> bool:
        """Wait before the next retry, with a growing delay and jitter.

        Args:
            error: Error of the last attempt.
            may_pass: Whether a retry may succeed.
            first_s: Maximum delay after the first failure in seconds.

        Returns:
            Whether to retry; if not, this method did not wait.
        """
        if self._since is None:
            self._since = clock.now()
        self.count += 1
        if not may_pass or (self.count > 1 and self.spent_s >= self._limit_s):
            return False
        self._log.record(error, self.spent_s)
        await clock.back_off(self.count, first_s)
        return True


class Meter:
    """Counter and timer of requests, for display.

    Attributes:
        quickest_s: Duration of the quickest request in seconds; infinite before the first
            response.
        throttled_at: Time of the last throttling, by `clock.now`; None before the first.
        total: Number of requests sent.
    """

    def __init__(self) -> None:
        self.total = 0
        self.quickest_s = math.inf
        self.throttled_at: float | None = None
        self._times: deque[float] = deque()

    @property
    def last_minute(self) -> int:
        """Number of requests sent within the last minute."""
        self._forget()
        return len(self._times)

    def record_sent(self) -> None:
        """Count a request."""
        self.total += 1
        self._times.append(clock.now())
        self._forget()

    def record_answered(self, took_s: float) -> None:
        """Record a response other than throttling."""
        self.quickest_s = min(self.quickest_s, took_s)

    def record_throttled(self) -> None:
        """Record that a request was throttled."""
        self.throttled_at = clock.now()

    def _forget(self) -> None:
        while self._times and self._times[0] < clock.now() - _MINUTE_S:
            self._times.popleft()


class Ticket:
    """A call that its caller may withdraw until it is sent, and again after a refusal."""

    def __init__(self) -> None:
        self._sent = False
        self._withdrawn = False

    @property
    def is_withdrawn(self) -> bool:
        """Whether its caller has withdrawn it."""
        return self._withdrawn

    def withdraw(self) -> bool:
        """Return whether the call has not been sent; if it has, it is not repeated."""
        self._withdrawn = True
        return not self._sent

    def record_sent(self) -> None:
        """Record that the call is being sent."""
        self._sent = True

    def record_refused(self) -> None:
        """Record that the call had no effect.

        Raises:
            asyncio.CancelledError: It was withdrawn meanwhile.
        """
        self._sent = False
        if self._withdrawn:
            raise asyncio.CancelledError
