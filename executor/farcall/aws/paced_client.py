"""Rate-limited client, with its own pace and retry policy.

The client sends each request once, so that this module sees every response. A throttled request
slows the client down and is no failure, whatever the operation; if a response is missing, only the
caller knows whether the operation may be repeated.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from farcall.aws import clients, error_translation
from farcall.model import clock
from farcall.model.errors import ServiceError
from farcall.model.timing import Timing

_log = logging.getLogger("farcall")

_THROTTLED = {"TooManyRequestsException", "ThrottlingException", "RequestLimitExceeded"}
_AT_ONCE = 40
"""Maximum concurrent calls of a client; there are connections for three clients."""
_FIRST_WAIT_S = 0.3
_SAY_S = 60.0
_MINUTE_S = 60.0
_SAY_FAILING_S = 15.0
"""Minimum interval between log messages in seconds.

Most retries are shorter; their callers report them.
"""


class Limiter:
    """Spaces calls evenly; slows down if throttled, and speeds up again over time.

    AWS Batch allows 50 calls per second and account, and responds to more with 429. All users of
    the account share these calls and observe each other only through these responses, so the fair
    pace cannot be known, only approached: throttling removes a share of the pace, and time adds
    the
    same amount to every client's. A faster client is throttled more often and loses more each
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


class Meter:
    """Counter and timer of requests, for display.

    Attributes:
        quickest_s: Duration of the quickest request in seconds; infinite before the first
            response.
        throttled_at: Time of the last throttling, by `clock.now`; None before the first.
    """

    def __init__(self) -> None:
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


class PacedClient:
    """Calls in sequence, with their own pace.

    Args:
        client: A client that sends each request once.
        most: Maximum calls per second; fewer while the service throttles.
        timing: Retry limits.
        meter: Counter of the requests.
    """

    def __init__(
        self, client: Any, most: float, timing: Timing, meter: Meter | None = None
    ) -> None:
        self._client = client
        self._timing = timing
        self._meter = meter or Meter()
        self._limiter = Limiter(most)
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._refused_since: float | None = None
        self._refused_at = 0.0
        self._said_at = 0.0

    async def once(
        self, operation: str, *, ticket: Ticket | None = None, **parameters: Any
    ) -> dict[str, Any]:
        """Make a call that must not be repeated if it may have had an effect.

        A throttled call had no effect, and is repeated, for up to an hour if all attempts are
        throttled.

        Raises:
            ServiceError: The service refused, or did not respond.
        """
        ticket = ticket or Ticket()
        while True:
            async with self._room:
                pace = await self._limiter.turn()
                ticket.record_sent()
                self._meter.record_sent()
                sent_at = clock.now()
                try:
                    reply = await clients.call(self._client, operation, **parameters)
                except ServiceError as error:
                    error_translation.heard(str(error))
                    if not (error.status == 429 or is_throttling(error.code)):
                        self._refused_since = None
                        raise
                    self._limiter.throttled(pace)
                    self._meter.record_throttled()
                    ticket.record_refused()
                    self._record_refused(error)
                else:
                    self._refused_since = None
                    self._meter.record_answered(clock.now() - sent_at)
                    return reply

    async def call(
        self, operation: str, *, patience_s: float | None = None, **parameters: Any
    ) -> dict[str, Any]:
        """Make a call that may be repeated, with retries if the service fails temporarily.

        Args:
            operation: The client's method, such as ``"describe_jobs"``.
            patience_s: Maximum time from the first failure to the last retry, in seconds; by
                default from the timing.
            **parameters: The request.

        Raises:
            ServiceError: The service refused, or failed each time.
        """
        tries = Tries(self._timing.call_retry_s if patience_s is None else patience_s)
        while True:
            try:
                return await self.once(operation, **parameters)
            except ServiceError as error:
                await tries.wait_after(error)

    async def pages(self, operation: str, **parameters: Any) -> AsyncIterator[dict[str, Any]]:
        """Make a call for each page of a list, each as in `call`.

        A page can be empty. Only a page without a token is the last one.

        Raises:
            ServiceError: The service refused, or failed each time.
        """
        while True:
            reply = await self.call(operation, **parameters)
            yield reply
            if not reply.get("nextToken"):
                return
            parameters["nextToken"] = reply["nextToken"]

    def slow_down(self) -> None:
        """Record throttling that a response reports in its body."""
        self._limiter.throttled(self._limiter.pace)
        self._meter.record_throttled()

    def _record_refused(self, error: ServiceError) -> None:
        now = clock.now()
        # After a long pause because a call was withdrawn, earlier throttling does not count.
        if self._refused_since is None or now - self._refused_at > _SAY_S:
            self._refused_since = self._said_at = now
        self._refused_at = now
        spent_s = now - self._refused_since
        if spent_s > self._timing.throttled_for_s:
            raise error_translation.like(
                error,
                f"{error}; all calls were throttled for {spent_s:.0f} s; find out what else in "
                "the account calls this service, because the limit is shared, and try again",
            )
        if now - self._said_at > _SAY_S:
            self._said_at = now
            _log.warning("%s; all calls were throttled for %.0f s, still retrying", error, spent_s)


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


class Tries:
    """Retry policy of one call.

    Args:
        patience_s: Maximum time from the first failure to the last retry, in seconds; the first
            retry is always made.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._failing_since: float | None = None
        self._said_at = 0.0
        self._count = 0
        self._renewals = 0

    async def wait_after(self, error: ServiceError, *, again: bool = False) -> None:
        """Wait before the next retry, with a growing delay and jitter.

        Args:
            error: The last attempt's error.
            again: Whether a retry is useful for a reason that only the caller knows.

        Raises:
            ServiceError: No further retry is useful; it contains the number of attempts.
        """
        now = clock.now()
        if self._failing_since is None:
            self._failing_since = now
        self._count += 1
        spent_s = now - self._failing_since
        if error_translation.is_expired(error):
            self._renewals += 1
            again = self._renewals <= error_translation.RENEWALS
        if not (again or error_translation.may_pass(error)):
            raise error
        if self._count > 1 and spent_s >= self._patience_s:
            raise error_translation.explain_tries(error, self._count, spent_s) from error
        if spent_s - self._said_at >= _SAY_FAILING_S:
            self._said_at = spent_s
            _log.warning("%s; retrying for %.0f s", error, spent_s)
        await clock.back_off(self._count, _FIRST_WAIT_S)


def is_throttling(code: str) -> bool:
    """Return whether an error's code means throttling."""
    return code in _THROTTLED
