"""SubmitJob requests that outlast their callers, and lost responses.

SubmitJob has no token. A job whose request had no response is searched for by its unique name in
Batch's lists, which lag behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from farcall.aws import error_translation
from farcall.backends.base import Backend, raise_first
from farcall.model import clock
from farcall.model.errors import FarcallError, ServiceError
from farcall.model.pacing import Ticket
from farcall.model.timing import Timing

if TYPE_CHECKING:
    pass

_log = logging.getLogger("farcall")


_CANCELLED = "cancelled while it was submitted"


_AGAIN_S = 5.0
"""Interval in seconds between searches for a job that Batch should list by now."""


def _never() -> bool:
    return False


class InFlight:
    """SubmitJob requests that are pending or had no response.

    Args:
        backend: Platform that runs the jobs.
        timing: Limits of the searches for submitted jobs.
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

        Cancelling the wait withdraws a request that was not sent yet. For a sent request, the
        response is awaited, and the job is terminated.

        Raises:
            FarcallError: Raised by ``sending``.
        """
        sent = asyncio.ensure_future(sending)
        try:
            return await asyncio.shield(sent)
        except asyncio.CancelledError:
            if ticket.withdraw():
                sent.cancel()
            else:
                # Shielded, because a second cancel must not interrupt a request in flight.
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

    async def find_jobs(self, name: str, queue: str, error: ServiceError) -> list[str]:
        """Return the jobs of a request without a response; none if it seems to have none.

        Raises:
            ServiceError: The search failed.
        """
        _log.warning("%s; checking whether %s was submitted", error, name)
        try:
            for wait_s in self._timing.submit_polls_s:
                await asyncio.sleep(wait_s)
                job_ids = await self._backend.find(name, queue)
                if job_ids:
                    return job_ids
        except ServiceError as failure:
            raise unanswered(name, error, failure) from failure
        return []

    async def await_listed(
        self, name: str, queue: str, is_enough: Callable[[], bool] = _never
    ) -> list[str]:
        """Wait until Batch lists jobs with a name, and return them.

        Returns:
            No jobs if Batch lists none within `Timing.listed_within_s`.

        Raises:
            ServiceError: The platform refused a request.
        """
        until = clock.now() + self._timing.listed_within_s
        while clock.now() < until and not is_enough():
            job_ids = await self._backend.find(name, queue)
            if job_ids:
                return job_ids
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
        """Search for withdrawn jobs from time to time, and terminate those that appear.

        Args:
            name: Name of the jobs.
            queue: Queue of the jobs.
            reason: Reason for the termination.
            most: Maximum number of such jobs.
            kept: ID of the job with this name that continues.
            waits_s: Seconds before each search; by default `Timing.withdrawn_polls_s`.
        """
        waits = self._timing.withdrawn_polls_s if waits_s is None else tuple(waits_s)

        async def follow() -> None:
            ended: set[str] = set()
            for wait_s in waits:
                await asyncio.sleep(wait_s)
                try:
                    duplicates = set(await self._backend.find(name, queue)) - ended - {kept}
                    raise_first(await self._backend.terminate(sorted(duplicates), reason))
                except FarcallError as error:
                    _log.debug("searching for %s, which was withdrawn: %s", name, error)
                    continue
                for job_id in duplicates:
                    text = "job %s (%s) appeared after it was withdrawn, and was terminated"
                    _log.warning(text, job_id, name)
                ended |= duplicates
                if len(ended) >= most:
                    return

        following = asyncio.ensure_future(follow())
        self._following[following] = name
        following.add_done_callback(self._following.pop)

    async def close(self) -> list[str]:
        """Stop searching for withdrawn jobs; return names of jobs that may appear."""
        left = dict(self._following)
        for each in left:
            each.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        return list(left.values())


def unanswered(name: str, error: ServiceError, failure: ServiceError) -> ServiceError:
    """Return an error that warns that a job may run."""
    return error_translation.with_text(
        failure,
        f"{error}; cannot determine whether job {name} was submitted, because the search for "
        f"it failed: {failure}. It was submitted if there is a job with this name.",
    )
