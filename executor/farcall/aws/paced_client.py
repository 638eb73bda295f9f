"""Rate-limited client, with its own pace and retry policy.

The client sends each request once, so that this module sees every response. A throttled request
slows the client down and is no failure, whatever the operation; if a response is missing, only the
caller knows whether the operation may be repeated.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

from farcall.aws import clients, error_translation
from farcall.model import clock
from farcall.model.errors import ServiceError
from farcall.model.pacing import Limiter, Meter, Retries, RetryLog, Ticket
from farcall.model.timing import Timing

_log = logging.getLogger("farcall")

_THROTTLED = {"TooManyRequestsException", "ThrottlingException", "RequestLimitExceeded"}
_AT_ONCE = 40
"""Maximum concurrent calls of a client; there are connections for three clients."""
_LOG_INTERVAL_S = 60.0
"""Minimum interval between log messages about throttling in seconds."""


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
        self._logged_at = 0.0
        self._retry_log = RetryLog()

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
                    error_translation.record_error(str(error))
                    if not (error.status == 429 or error.code in _THROTTLED):
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
        self, operation: str, *, retry_s: float | None = None, **parameters: Any
    ) -> dict[str, Any]:
        """Make a call that may be repeated, with retries if the service fails temporarily.

        Args:
            operation: The client's method, such as ``"describe_jobs"``.
            retry_s: Maximum time from the first failure to the last retry, in seconds; by
                default from the timing.
            **parameters: The request.

        Raises:
            ServiceError: The service refused, or failed each time.
        """
        limit_s = self._timing.call_retry_s if retry_s is None else retry_s
        tries = Tries(limit_s, self._retry_log)
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

    def _record_refused(self, error: ServiceError) -> None:
        now = clock.now()
        # After a long pause because a call was withdrawn, earlier throttling does not count.
        if self._refused_since is None or now - self._refused_at > _LOG_INTERVAL_S:
            self._refused_since = self._logged_at = now
        self._refused_at = now
        spent_s = now - self._refused_since
        if spent_s > self._timing.throttled_for_s:
            raise error_translation.with_text(
                error,
                f"{error}; all calls were throttled for {spent_s:.0f} s; find out what else in "
                "the account calls this service, because the limit is shared, and try again",
            )
        if now - self._logged_at > _LOG_INTERVAL_S:
            self._logged_at = now
            _log.warning("%s; all calls were throttled for %.0f s, still retrying", error, spent_s)


class Tries(Retries):
    """Retries of one call to AWS."""

    _renewals = 0

    async def wait_after(self, error: ServiceError, *, again: bool = False) -> None:
        """Wait before the next retry; see `Retries.wait`.

        Args:
            error: The last attempt's error.
            again: Whether a retry is useful for a reason that only the caller knows.

        Raises:
            ServiceError: No further retry is useful; it contains the number of attempts.
        """
        if error_translation.is_expired(error):
            self._renewals += 1
            again = self._renewals <= error_translation.RENEWALS
        may_pass = again or error_translation.may_pass(error)
        if not await self.wait(error, may_pass=may_pass):
            if not may_pass:
                raise error
            raise error_translation.explain_tries(error, self.count, self.spent_s) from error
