"""Requests in flight: SubmitJob calls that outlast whoever waits for them, and lost answers.

SubmitJob takes no token. A job whose request was not answered is looked for by its name, which is
unique, in Batch's lists, which lag behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from farcall.aws import refusals
from farcall.aws.paced_client import Ticket
from farcall.backends.base import Backend, raise_first
from farcall.model import clock
from farcall.model.errors import FarcallError, ServiceError
from farcall.model.timing import Timing

_log = logging.getLogger("farcall")

_CANCELLED = "cancelled while it was submitted"
_AGAIN_S = 5.0
"""Between two looks for a job that ought to be listed by now."""


def _never() -> bool:
    return False


class InFlight:
    """SubmitJob requests that are on their way, or were not answered.

    Args:
        backend: Where the jobs run.
        timing: How long is looked for what was submitted.
    """

    def __init__(self, backend: Backend, timing: Timing) -> None:
        self._backend = backend
        self._timing = timing
        self._ending: set[asyncio.Future[None]] = set()
        self._following: dict[asyncio.Future[None], str] = {}

    async def finish(
        self, sending: Awaitable[str], ticket: Ticket, name: Callable[[], str]
    ) -> str:
        """Wait for a job's submission, and return its ID.

        Cancelling the wait takes a request back that waits for its turn. For one on its way the
        answer is waited for, and the job is terminated.

        Raises:
            FarcallError: What ``sending`` raises.
        """
        sent = asyncio.ensure_future(sending)
        try:
            return await asyncio.shield(sent)
        except asyncio.CancelledError:
            if ticket.withdraw():
                sent.cancel()
            else:
                # Shielded: a second cancel must not cut off a request that is on its way.
                ending = asyncio.ensure_future(self._terminate_late(name, sent))
                self._ending.add(ending)
                ending.add_done_callback(self._ending.discard)
                await asyncio.shield(ending)
            raise

    async def _terminate_late(self, name: Callable[[], str], sent: asyncio.Future[str]) -> None:
        try:
            raise_first(await self._backend.terminate([await sent], _CANCELLED))
        except FarcallError as error:
            _log.warning("%s, which was cancelled: %s", name(), error)

    async def look(self, name: str, queue: str, error: ServiceError) -> list[str]:
        """Return the jobs of a request that was not answered; none where there seems to be none.

        Raises:
            ServiceError: Whether there is a job cannot be told.
        """
        _log.warning("%s; looking whether %s was submitted", error, name)
        try:
            for wait_s in self._timing.submit_looks_s:
                await asyncio.sleep(wait_s)
                found = await self._backend.find(name, queue)
                if found:
                    return found
        except ServiceError as failure:
            raise unanswered(name, error, failure) from failure
        return []

    async def await_listed(
        self, name: str, queue: str, is_enough: Callable[[], bool] = _never
    ) -> list[str]:
        """Return the jobs of a name, once Batch lists one.

        Returns:
            None of them where Batch did not within `Timing.listed_within_s`.

        Raises:
            ServiceError: The platform refused.
        """
        until = clock.now() + self._timing.listed_within_s
        while clock.now() < until and not is_enough():
            found = await self._backend.find(name, queue)
            if found:
                return found
            await asyncio.sleep(_AGAIN_S)
        return []

    def follow(
        self,
        name: str,
        queue: str,
        reason: str,
        *,
        most: int = 1,
        kept: str = "",
        waits_s: Iterable[float] | None = None,
    ) -> None:
        """Look now and then for jobs that were given up, and end those that turn up.

        Args:
            name: Their name.
            queue: Their queue.
            reason: Why they are ended.
            most: How many there may be.
            kept: The one of the name that goes on.
            waits_s: Seconds before each look; by default `Timing.withdrawn_looks_s`.
        """
        waits = self._timing.withdrawn_looks_s if waits_s is None else tuple(waits_s)

        async def follow() -> None:
            ended: set[str] = set()
            for wait_s in waits:
                await asyncio.sleep(wait_s)
                try:
                    found = set(await self._backend.find(name, queue)) - ended - {kept}
                    raise_first(await self._backend.terminate(sorted(found), reason))
                except FarcallError as error:
                    _log.debug("looking for %s, which was withdrawn: %s", name, error)
                    continue
                for job_id in found:
                    text = "job %s (%s) turned up after it was withdrawn, and was ended"
                    _log.warning(text, job_id, name)
                ended |= found
                if len(ended) >= most:
                    return

        following = asyncio.ensure_future(follow())
        self._following[following] = name
        following.add_done_callback(self._following.pop)

    async def close(self) -> list[str]:
        """Look no more for jobs that were given up; return the names of those that might come."""
        left = dict(self._following)
        for each in left:
            each.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        return list(left.values())


def unanswered(name: str, error: ServiceError, failure: ServiceError) -> ServiceError:
    """Say that a job may run."""
    return refusals.like(
        failure,
        f"{error}; whether job {name} was submitted is not known, because looking for it failed: "
        f"{failure}; it was if there is a job of this name",
    )
