"""Rate-limited client: each one keeps a pace and a retry policy of its own.

The client sends once, so that each answer is seen here: a refusal for coming too fast slows the
client down and is no failure, whatever the operation; where an answer is missing, only the caller
knows whether the operation may be repeated.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections import deque
from typing import Any

from farcall.aws import clients, refusals
from farcall.model import clock
from farcall.model.errors import ServiceError
from farcall.model.timing import Timing

_log = logging.getLogger("farcall")

_THROTTLED = {"TooManyRequestsException", "ThrottlingException", "RequestLimitExceeded"}
_AT_ONCE = 40
"""Calls of one client on their way at once; a client has connections for three."""
_FIRST_WAIT_S = 0.3
_SAY_S = 60.0
_MINUTE_S = 60.0
_SAY_FAILING_S = 15.0
"""Longer than most calls are tried again: who makes them has words of their own."""


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
        waited = clock.now() - self._refused
        return min(self._most, self._base + waited + (waited / self._PATIENCE_S) ** 4)

    async def turn(self) -> float:
        """Wait for a turn; return the pace at which it was given, for `throttled`."""
        async with self._line:  # one behind the other, so that a 429 slows down those who wait
            begun = clock.now()
            while (wait := self._next - clock.now()) > 0:  # noqa: ASYNC110  # may grow
                await asyncio.sleep(wait)
            pace = self.pace
            due = max(begun, self._next, clock.now() - self._LATE_S)
            self._next = due + 1 / pace
            return pace

    def throttled(self, pace: float) -> None:
        """Note that a call was refused for coming too fast.

        What counts is the pace at which it was sent. So of several calls on their way at once,
        all refused, only the first slows the others down.
        """
        slower = max(self._LEAST, self._KEPT * pace)
        if slower >= self.pace:
            return
        now = clock.now()
        self._base, self._refused = slower, now
        # Clients that were refused together are not to come again together.
        pause = random.uniform(0.5, 1) / slower  # noqa: S311  # no secret
        self._next = max(self._next, now + pause)


class Meter:
    """Counts requests, for whoever shows how many there are, and times them.

    Attributes:
        quickest_s: What the quickest of them took; infinite before the first answer.
        throttled_at: When one was last refused for coming too fast, by `clock.now`; None where
            none was.
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

    def note_sent(self) -> None:
        """Count a request."""
        self._times.append(clock.now())
        self._forget()

    def note_answered(self, took_s: float) -> None:
        """Note that a request was answered, other than that it was refused."""
        self.quickest_s = min(self.quickest_s, took_s)

    def note_throttled(self) -> None:
        """Note that a request was refused for coming too fast."""
        self.throttled_at = clock.now()

    def _forget(self) -> None:
        while self._times and self._times[0] < clock.now() - _MINUTE_S:
            self._times.popleft()


class PacedClient:
    """Calls that are made one behind the other, at a pace of their own.

    Args:
        client: A client that sends once.
        most: Calls a second at most; fewer while the service refuses some.
        timing: How long calls are tried again.
        meter: Counts them.
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
        """Make a call that must not be repeated where it may have been carried out.

        A call that was refused for coming too fast was not carried out, and is made again, for
        an hour if no call of it gets through.

        Raises:
            ServiceError: The service refused, or did not answer.
        """
        ticket = ticket or Ticket()
        while True:
            async with self._room:
                pace = await self._limiter.turn()
                ticket.note_sent()
                self._meter.note_sent()
                sent_at = clock.now()
                try:
                    reply = await clients.call(self._client, operation, **parameters)
                except ServiceError as error:
                    refusals.heard(str(error))
                    if not (error.status == 429 or is_throttling(error.code)):
                        self._refused_since = None
                        raise
                    self._limiter.throttled(pace)
                    self._meter.note_throttled()
                    ticket.note_refused()
                    self._note_refused(error)
                else:
                    self._refused_since = None
                    self._meter.note_answered(clock.now() - sent_at)
                    return reply

    async def call(
        self, operation: str, *, patience_s: float | None = None, **parameters: Any
    ) -> dict[str, Any]:
        """Make a call that may be repeated, and repeat it where the service fails for a while.

        Args:
            operation: The client's method, such as ``"describe_jobs"``.
            patience_s: Seconds from the first failure, after which it is not tried again; by
                default those of the timing.
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

    def slow_down(self) -> None:
        """Note that something was refused for coming too fast, within an answer."""
        self._limiter.throttled(self._limiter.pace)
        self._meter.note_throttled()

    def _note_refused(self, error: ServiceError) -> None:
        now = clock.now()
        # One that was not used for long, because a call was withdrawn, was refused nothing.
        if self._refused_since is None or now - self._refused_at > _SAY_S:
            self._refused_since = self._said_at = now
        self._refused_at = now
        spent_s = now - self._refused_since
        if spent_s > self._timing.throttled_for_s:
            raise refusals.explain_throttling(error, spent_s)
        if now - self._said_at > _SAY_S:
            self._said_at = now
            _log.warning("%s; for %.0f s nothing else was answered, going on", error, spent_s)


class Ticket:
    """A call that its caller may withdraw until it is sent, and once more when it was refused."""

    def __init__(self) -> None:
        self._sent = False
        self._withdrawn = False

    @property
    def is_withdrawn(self) -> bool:
        """Whether its caller does not want it any more."""
        return self._withdrawn

    def withdraw(self) -> bool:
        """Return whether the call has not been sent; if it has, it is not repeated."""
        self._withdrawn = True
        return not self._sent

    def note_sent(self) -> None:
        """Note that the call's turn has come."""
        self._sent = True

    def note_refused(self) -> None:
        """Note that the call was not carried out.

        Raises:
            asyncio.CancelledError: It was withdrawn meanwhile.
        """
        self._sent = False
        if self._withdrawn:
            raise asyncio.CancelledError


class Tries:
    """Counts the tries of one call, and decides whether there is another.

    Args:
        patience_s: Seconds from the first failure, after which no further try begins but the
            second.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._failing_since: float | None = None
        self._said_at = 0.0
        self._count = 0
        self._renewals = 0

    async def wait_after(self, error: ServiceError, *, again: bool = False) -> None:
        """Wait before the next try; longer each time, and not for the same time as others.

        Args:
            error: What the last one met.
            again: Whether a further try makes sense for a reason that only the caller knows.

        Raises:
            ServiceError: A further try makes no sense; it names the tries there were.
        """
        now = clock.now()
        if self._failing_since is None:
            self._failing_since = now
        self._count += 1
        spent_s = now - self._failing_since
        if refusals.is_expired(error):
            self._renewals += 1
            again = self._renewals <= refusals.RENEWALS
        if not (again or refusals.may_pass(error)):
            raise error
        if self._count > 1 and spent_s >= self._patience_s:
            raise refusals.explain_tries(error, self._count, spent_s) from error
        if spent_s - self._said_at >= _SAY_FAILING_S:
            self._said_at = spent_s
            _log.warning("%s; trying again since %.0f s", error, spent_s)
        await clock.back_off(self._count, _FIRST_WAIT_S)


def is_throttling(code: str) -> bool:
    """Return whether an error's code means that calls come too fast."""
    return code in _THROTTLED
