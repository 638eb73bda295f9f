"""Exactly-once submission: one job runs, even if SubmitJob's response is lost.

SubmitJob has no idempotency token. A request without a response may have been executed, or may be
executed later, so farcall never repeats the same request:

1. farcall searches for the job by its unique name, in Batch's lists, which lag behind, and by the
   objects that the job may have stored. If it finds the job, it tracks that job.
2. Otherwise the request is *withdrawn*: the bundle is renamed, so that the old name no longer
   exists. A job that appears later finds no payload, runs nothing, and is not retried; farcall
   searches for such jobs and terminates them.
3. farcall searches once more. A job that started in time is tracked and gets its bundle back.
4. The request is sent again with the new name, unless it was the last try or was cancelled.

So a function runs twice only if Batch had accepted the job, the job had fetched its payload before
the withdrawal, and Batch still does not list the job long after its submission.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from farcall.aws import error_translation
from farcall.aws.paced_client import Tries
from farcall.backends.base import Backend, JobSpec, platform_of, raise_first
from farcall.config.settings import Settings
from farcall.model import clock
from farcall.model.commands import ENV_RUN, Nodes
from farcall.model.errors import FarcallError, ServiceError
from farcall.model.failure_reasons import WITHDRAWN
from farcall.model.pacing import Ticket
from farcall.model.timing import Timing
from farcall.model.workflows import Workflow
from farcall.payload.bundle import Bundle
from farcall.storage.store import Store
from farcall_runtime.contract import Location

# --- Requests in flight: SubmitJob calls that outlast their callers, and lost responses
#
# SubmitJob has no token. A job whose request had no response is searched for by its unique name in
# Batch's lists, which lag behind.


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
                found = await self._backend.find(name, queue)
                if found:
                    return found
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
                    found = set(await self._backend.find(name, queue)) - ended - {kept}
                    raise_first(await self._backend.terminate(sorted(found), reason))
                except FarcallError as error:
                    _log.debug("searching for %s, which was withdrawn: %s", name, error)
                    continue
                for job_id in found:
                    text = "job %s (%s) appeared after it was withdrawn, and was terminated"
                    _log.warning(text, job_id, name)
                ended |= found
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


_log = logging.getLogger("farcall")

Write = Callable[[], JobSpec]
"""Builds the job for a bundle's current name."""

T = TypeVar("T")

Renamed = Callable[[Location], Awaitable[None]]
"""Called with the new location of a bundle before its job is submitted."""


class Sender:
    """Sends SubmitJob requests for bundles of one bucket.

    Args:
        backend: Platform that runs the jobs.
        store: Bucket of the bundles.
        timing: Limits of submissions and searches.
    """

    def __init__(self, backend: Backend, store: Store, timing: Timing) -> None:
        self._backend = backend
        self._store = store
        self._timing = timing
        self._in_flight = InFlight(backend, timing)

    async def send(
        self, bundle: Bundle, write: Write, ticket: Ticket, renamed: Renamed | None = None
    ) -> str:
        """Submit one job for a stored bundle, and return the job's ID.

        Cancelling the wait withdraws a request that was not sent yet. For a sent request, the
        response is awaited, and the job is terminated.

        Args:
            bundle: The bundle. It may be renamed.
            write: Builds the request.
            ticket: Reports afterwards whether Batch may have a job with the bundle's name.
            renamed: Called if the bundle is renamed.

        Raises:
            SettingsError: The queue does not exist.
            SubmissionError: Batch refused the job.
            ServiceError: The credentials lack a permission, or AWS cannot be reached.
        """
        sending = self._send(bundle, write, ticket, renamed)
        return await self._in_flight.finish(sending, ticket, lambda: bundle.where.bundle)

    async def close(self) -> None:
        """Stop the searches for withdrawn jobs, which exit because they have no payload."""
        await self._in_flight.close()

    async def _send(
        self, bundle: Bundle, write: Write, ticket: Ticket, renamed: Renamed | None
    ) -> str:
        tries = Tries(self._timing.submit_retry_s)
        while True:
            job = write()
            try:
                return await self._backend.submit(job, ticket)
            except ServiceError as error:
                queue = job.settings.queue
                found = await self._follow_up(bundle, queue, error, ticket, tries)
                if found:
                    return found
                if error.sent and renamed is not None:
                    await renamed(bundle.where)

    async def _follow_up(
        self,
        bundle: Bundle,
        queue: str,
        error: ServiceError,
        ticket: Ticket,
        tries: Tries,
    ) -> str | None:
        """Find the job of a failed request, or return None for a new try."""
        found = await self._find_job(bundle.where, queue, error) if error.sent else None
        if found:
            return found
        if not error.sent:
            ticket.record_refused()
        last = await _wait(tries, error)
        if error.sent:
            found = await self._withdraw(bundle, queue, error)
            if found:
                return found
            ticket.record_refused()  # only now: before, its job could run
        if last is not None:
            raise last from error
        return None

    # --- without a response -------------------------------------------------------------------

    async def _find_job(self, where: Location, queue: str, error: ServiceError) -> str | None:
        """Return the job of a request without a response; None if it seems to have none."""
        found = await self._in_flight.find_jobs(where.bundle, queue, error)
        if found:
            return found[0]
        try:
            if await has_begun(self._store, where):
                return await self._await_listed(where, queue)
        except ServiceError as failure:
            raise unanswered(where.bundle, error, failure) from failure
        return None

    async def _withdraw(self, bundle: Bundle, queue: str, error: ServiceError) -> str | None:
        """Remove the payload of the job whose request had no response.

        Returns:
            The job, if it has started anyway; then its payload is restored.

        Raises:
            ServiceError: The search failed; then the payload is restored, too.
        """
        old = bundle.where
        new = bundle.rename()

        async def find_jobs() -> list[str] | None:
            found = await self._backend.find(old.bundle, queue)
            return found if found or await has_begun(self._store, old) else None

        try:
            found = await withdraw(self._store, old, new, find_jobs)
            if found is not None:
                bundle.where = old
                return found[0] if found else await self._await_listed(old, queue)
        except ServiceError as failure:
            bundle.where = old
            raise unanswered(old.bundle, error, failure) from failure
        _log.warning(
            "%s was withdrawn; if it is submitted again, it is job %s", old.bundle, new.bundle
        )
        # All its containers would start in vain.
        reason = f"{WITHDRAWN}; if it was submitted again, it is job {new.bundle}"
        self._in_flight.follow(old.bundle, queue, reason)
        return None

    async def _await_listed(self, where: Location, queue: str) -> str:
        """Wait until Batch lists a job that has stored an object; return its ID."""
        found = await self._in_flight.await_listed(where.bundle, queue)
        if found:
            return found[0]
        within_s = self._timing.listed_within_s
        raise ServiceError(
            f"the job has started, but no list has returned it for {within_s:.0f} s; try again",
            operation="ListJobs",
        )


async def _wait(tries: Tries, error: ServiceError) -> ServiceError | None:
    """Wait before the next try; return the error if there is none."""
    try:
        await tries.wait_after(error)
    except ServiceError as last:
        return last
    return None


async def withdraw(
    store: Store, old: Location, new: Location, find_jobs: Callable[[], Awaitable[T | None]]
) -> T | None:
    """Rename a bundle whose job was not found, and search for the job once more.

    If the job is found or the search fails, the old name is restored.

    Args:
        store: Bucket of the bundle.
        old: Location of the bundle.
        new: Its new location.
        find_jobs: Returns the job, or None.

    Returns:
        The job; if None, the bundle exists only at its new location.

    Raises:
        ServiceError: The bundle does not exist, or S3 refused a request.
        Exception: Raised by ``find_jobs``.
    """
    found: T | None = None
    is_known = False
    await store.copy(old.bundle_key, new.bundle_key)
    try:
        await store.delete([old.bundle_key])
        found = await find_jobs()
        is_known = True
    finally:
        if not is_known or found is not None:
            await store.copy(new.bundle_key, old.bundle_key)
            store.delete_later([new.bundle_key])
    return found


async def has_begun(store: Store, where: Location) -> bool:
    """Return whether the job of a bundle has stored an object.

    Raises:
        ServiceError: S3 refused a request.
    """
    found = await asyncio.gather(*map(store.is_there, where.prefixes))
    return any(found)


if TYPE_CHECKING:
    from farcall.engine.session import Session

# --- Exactly-once launch of command jobs, even if SubmitJob's response is lost
#
# A command job has no payload that could be withdrawn. So a request without a response is followed
# by a longer wait than a function's; see the module docstring for functions:
#
# 1. The job is searched for by its name, for as long as lists may lag behind. If it is found, it
#    is adopted.
# 2. Otherwise the request is sent again, for a job of the same name.
# 3. The name is searched for from time to time. If there are several jobs, all except one are
#    terminated; if the last request was given up or cancelled, all of them.
#
# So a command runs twice only if Batch lists its first job later than that.


async def launch(
    session: Session, settings: Settings, groups: Sequence[Nodes], *, name: str
) -> str:
    """Submit a command job, and return its ID. No bucket is needed.

    Cancelling the wait withdraws the request; a job that is accepted anyway is terminated.

    Args:
        session: The running event loop's session.
        settings: Options of the job.
        groups: Groups of nodes.
        name: Unique name of the job; see `farcall.model.names`.

    Raises:
        SettingsError: A resource that the options name does not exist, or the platform does not
            accept the combination of options and groups.
        TaskTooLargeError: Commands and variables exceed a limit of Batch.
        SubmissionError: Batch refused the job.
        ServiceError: AWS refused a call or cannot be reached.
    """
    with session.at_work():
        await session.check(settings)
        return await session.launcher.launch(command_of(settings, groups, name, session.run))


def command_of(settings: Settings, groups: Sequence[Nodes], name: str, run: str) -> JobSpec:
    """Build the specification of a command job.

    Args:
        settings: Options of the job.
        groups: Groups of nodes.
        name: Unique name of the job; see `farcall.model.names`.
        run: Name of the client's run, as `Session.run`.
    """
    environment = {ENV_RUN: run, **Workflow(settings.workflow_name).environment()}
    settings = settings.with_environment()
    merged = tuple(_with_variables(group, settings) for group in groups)
    settings = settings.with_options(environment={}, secrets={})
    return JobSpec(name, 1, environment, settings, merged)


def _with_variables(group: Nodes, settings: Settings) -> Nodes:
    """Return a group with the options' variables that it does not set itself."""
    own = {*group.env, *group.secrets}
    env = {name: value for name, value in settings.variables.items() if name not in own}
    secrets = {name: place for name, place in settings.secrets.items() if name not in own}
    return replace(group, env={**env, **group.env}, secrets={**secrets, **group.secrets})


class Launcher:
    """Submits the command jobs of one session.

    Args:
        backend: Platform that runs the jobs.
        timing: Limits of submissions and searches.
    """

    def __init__(self, backend: Backend, timing: Timing) -> None:
        self._backend = backend
        self._timing = timing
        self._in_flight = InFlight(backend, timing)

    async def launch(self, job: JobSpec) -> str:
        """Submit a job once, and return its ID; see `launch`."""
        await self._backend.prepare(job)
        ticket = Ticket()
        return await self._in_flight.finish(self._launch(job, ticket), ticket, lambda: job.name)

    async def close(self) -> None:
        """Stop the searches for jobs that may appear, and log their names."""
        for name in await self._in_flight.close():
            _log.warning(
                "the request to submit job %s was not answered. If %s lists it later, no "
                "process waits for it: use farcall cancel JOB to cancel it.",
                name,
                platform_of(self._backend),
            )

    async def _launch(self, job: JobSpec, ticket: Ticket) -> str:
        tries = Tries(self._timing.submit_retry_s)
        lost = 0  # requests that may have been executed, whose jobs were not found
        kept = ""
        try:
            while not kept:
                try:
                    kept = await self._backend.submit(job, ticket)
                except ServiceError as error:
                    kept = await self._find_job(job, error, ticket) if error.sent else ""
                    if not kept:
                        lost += error.sent
                        ticket.record_refused()
                        await tries.wait_after(error)
        finally:
            if lost:
                self._follow(job, lost, kept)
        return kept

    async def _find_job(self, job: JobSpec, error: ServiceError, ticket: Ticket) -> str:
        """Return the job of a request without a response; empty if it seems to have none.

        If the caller has cancelled, the search is shorter: a job that appears later is terminated.
        """
        name, queue = job.name, job.settings.queue
        found = await self._in_flight.find_jobs(name, queue, error)
        if not found:
            try:
                found = await self._in_flight.await_listed(
                    name, queue, lambda: ticket.is_withdrawn
                )
            except ServiceError as failure:
                raise unanswered(name, error, failure) from failure
        return found[0] if found else ""

    def _follow(self, job: JobSpec, lost: int, kept: str) -> None:
        goes_on = (
            f"it was submitted again, as job {kept}" if kept else "it was not submitted again"
        )
        self._in_flight.follow(
            job.name,
            job.settings.queue,
            f"{WITHDRAWN}; {goes_on}",
            most=lost,
            kept=kept,
            waits_s=(0.0, *self._timing.withdrawn_polls_s),
        )
