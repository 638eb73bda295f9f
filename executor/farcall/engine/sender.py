"""Exactly-once submission: one job runs, whatever becomes of SubmitJob or of its answer.

SubmitJob takes no token. A request that was not answered may have been carried out, or may be
carried out later, so it is never sent again as it was:

1. The job is looked for by its name, which is unique, in Batch's lists, which lag behind, and by
   what it may have left in the bucket. It is adopted where it is found.
2. Where it is not, it is *withdrawn*: its bundle gets another name, and is there no more under the
   one that the request told. A job that turns up later finds no payload, runs nothing, and is not
   retried; it is looked for, and ended.
3. It is looked for once more. What had begun in time is adopted, and has its bundle back.
4. The request is sent again, for a job of the new name; or it was the last one, or was cancelled.

So a function runs twice only where a job was accepted and begun, and had fetched its payload,
before the withdrawal, and is in no list so long after its submission.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from farcall.aws import refusals
from farcall.aws.paced_client import Ticket, Tries
from farcall.backends.base import Backend, JobSpec, platform_of, raise_first
from farcall.model import clock
from farcall.model.commands import ENV_RUN, Nodes
from farcall.model.endings import WITHDRAWN
from farcall.model.errors import FarcallError, ServiceError
from farcall.model.settings import Settings
from farcall.model.timing import Timing
from farcall.model.workflows import Workflow
from farcall.payload.bundle import Bundle
from farcall.storage.store import Store
from farcall_runtime.contract import Location

# --- Requests in flight: SubmitJob calls that outlast whoever waits for them, and lost answers
#
# SubmitJob takes no token. A job whose request was not answered is looked for by its name, which
# is unique, in Batch's lists, which lag behind.


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


_log = logging.getLogger("farcall")

Write = Callable[[], JobSpec]
"""Says what job is to carry a bundle, by the name that it has now."""

T = TypeVar("T")

Renamed = Callable[[Location], Awaitable[None]]
"""Is told another place of a bundle, before a job is submitted that carries it."""


class Sender:
    """Sends SubmitJob requests for bundles of one bucket.

    Args:
        backend: Where the jobs run.
        store: The bucket.
        timing: How long is submitted, and looked for what was.
    """

    def __init__(self, backend: Backend, store: Store, timing: Timing) -> None:
        self._backend = backend
        self._store = store
        self._timing = timing
        self._in_flight = InFlight(backend, timing)

    async def send(
        self, bundle: Bundle, write: Write, ticket: Ticket, renamed: Renamed | None = None
    ) -> str:
        """Have one job carry a bundle that is in the bucket, and return its ID.

        Cancelling the wait takes a request back that waits for its turn. For one on its way the
        answer is waited for, and the job is terminated.

        Args:
            bundle: The bundle. It may have another name afterwards.
            write: Writes the request.
            ticket: Tells afterwards whether Batch may have a job of the bundle's name.
            renamed: Is told of another name.

        Raises:
            SettingsError: There is no such queue.
            SubmissionError: Batch refused the job.
            ServiceError: The credentials don't allow it, or AWS cannot be reached.
        """
        sending = self._send(bundle, write, ticket, renamed)
        return await self._in_flight.finish(sending, ticket, lambda: bundle.where.bundle)

    async def close(self) -> None:
        """Look no more for withdrawn jobs: without their payload they end by themselves."""
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
        """Find out what became of a request that failed; return its job, or None for a new try."""
        found = await self._look(bundle.where, queue, error) if error.sent else None
        if found:
            return found
        if not error.sent:
            ticket.note_refused()
        last = await _wait(tries, error)
        if error.sent:
            found = await self._withdraw(bundle, queue, error)
            if found:
                return found
            ticket.note_refused()  # only now: until here a job of it could run
        if last is not None:
            raise last from error
        return None

    # --- without an answer --------------------------------------------------------------------

    async def _look(self, where: Location, queue: str, error: ServiceError) -> str | None:
        """Return the job of a request that was not answered; None where there seems to be none."""
        found = await self._in_flight.look(where.bundle, queue, error)
        if found:
            return found[0]
        try:
            if await has_begun(self._store, where):
                return await self._await_listed(where, queue)
        except ServiceError as failure:
            raise unanswered(where.bundle, error, failure) from failure
        return None

    async def _withdraw(self, bundle: Bundle, queue: str, error: ServiceError) -> str | None:
        """Take the payload away from the job of a request that was not answered.

        Returns:
            The job, where it has begun anyway; then it has its payload back.

        Raises:
            ServiceError: Whether there is one cannot be told; then it has its payload back, too.
        """
        old = bundle.where
        new = bundle.rename()

        async def look() -> list[str] | None:
            found = await self._backend.find(old.bundle, queue)
            return found if found or await has_begun(self._store, old) else None

        try:
            found = await withdraw(self._store, old, new, look)
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
        """Return the ID of a job that has left something in the bucket, once Batch lists it."""
        found = await self._in_flight.await_listed(where.bundle, queue)
        if found:
            return found[0]
        within_s = self._timing.listed_within_s
        raise ServiceError(
            f"it has begun, and no list has told of it for {within_s:.0f} s; try again",
            operation="ListJobs",
        )


async def _wait(tries: Tries, error: ServiceError) -> ServiceError | None:
    """Wait before the next try; return the error where there is to be none."""
    try:
        await tries.wait_after(error)
    except ServiceError as last:
        return last
    return None


async def withdraw(
    store: Store, old: Location, new: Location, look: Callable[[], Awaitable[T | None]]
) -> T | None:
    """Take the payload away from a job that nobody finds, and look for it once more.

    The bundle gets another name. It has its own back where the job is there anyway, and
    where that cannot be told.

    Args:
        store: The bucket.
        old: The bundle's place.
        new: Its other place.
        look: Returns what is found, or None.

    Returns:
        What was found; where it is None, the bundle is at its new place alone.

    Raises:
        ServiceError: There is no such bundle, or S3 refused.
        Exception: What ``look`` raises.
    """
    found: T | None = None
    is_known = False
    await store.copy(old.bundle_key, new.bundle_key)
    try:
        await store.delete([old.bundle_key])
        found = await look()
        is_known = True
    finally:
        if not is_known or found is not None:
            await store.copy(new.bundle_key, old.bundle_key)
            store.delete_later([new.bundle_key])
    return found


async def has_begun(store: Store, where: Location) -> bool:
    """Return whether the job of a bundle has left something in the bucket.

    Raises:
        ServiceError: S3 refused.
    """
    found = await asyncio.gather(*map(store.is_there, where.prefixes))
    return any(found)


if TYPE_CHECKING:
    from farcall.engine.session import Session

# --- Exactly-once launch of command jobs: one job of a name runs, whatever becomes of SubmitJob
#
# A command job has no payload that could be taken from it, so a request that was not answered is
# followed by a longer wait than a function's; see `farcall.engine.sender` for those:
#
# 1. The job is looked for by its name, for as long as lists may lag behind. It is adopted where it
#    is found.
# 2. Where it is not, the request is sent again, for a job of the same name.
# 3. The name is looked for now and then. Of several jobs all but one are ended; where the last
#    request was given up or cancelled, all of them.
#
# So a command runs twice only where Batch lists its first job later than that.


async def launch(
    session: Session, settings: Settings, groups: Sequence[Nodes], *, name: str
) -> str:
    """Submit a command job, and return its ID. No bucket is needed.

    Cancelling the wait takes the request back; a job that is accepted anyway is terminated.

    Args:
        session: The running event loop's session.
        settings: The options.
        groups: What its nodes run.
        name: Its name, which no other job may have; see `farcall.model.names`.

    Raises:
        SettingsError: Something the options name does not exist, or they and the groups do not
            make a job that the platform takes.
        TaskTooLargeError: Commands and variables exceed a limit of Batch.
        SubmissionError: Batch refused the job.
        ServiceError: AWS refused a call, or cannot be reached.
    """
    with session.at_work():
        await session.check(settings)
        return await session.launcher.launch(command_of(settings, groups, name, session.run))


def command_of(settings: Settings, groups: Sequence[Nodes], name: str, run: str) -> JobSpec:
    """Describe a command job.

    Args:
        settings: The options.
        groups: What its nodes run.
        name: Its name, which no other job may have.
        run: The client process that submits it, as `Session.run`.
    """
    environment = {ENV_RUN: run, **Workflow.of(settings).environment()}
    return JobSpec(name, 1, environment, settings, tuple(groups))


class Launcher:
    """Submits the command jobs of one session.

    Args:
        backend: Where the jobs run.
        timing: How long is submitted, and looked for what was.
    """

    def __init__(self, backend: Backend, timing: Timing) -> None:
        self._backend = backend
        self._timing = timing
        self._in_flight = InFlight(backend, timing)

    async def launch(self, job: JobSpec) -> str:
        """Have a job submitted once, and return its ID; see `launch`."""
        await self._backend.prepare(job)
        ticket = Ticket()
        return await self._in_flight.finish(self._launch(job, ticket), ticket, lambda: job.name)

    async def close(self) -> None:
        """Look no more for jobs that may turn up, and say of which."""
        for name in await self._in_flight.close():
            _log.warning(
                "the request to submit job %s was not answered; should %s list one that nobody "
                "waits for, farcall cancel JOB ends it",
                name,
                platform_of(self._backend),
            )

    async def _launch(self, job: JobSpec, ticket: Ticket) -> str:
        tries = Tries(self._timing.submit_retry_s)
        lost = 0  # requests that may have been carried out, and whose jobs nobody has found
        kept = ""
        try:
            while not kept:
                try:
                    kept = await self._backend.submit(job, ticket)
                except ServiceError as error:
                    kept = await self._look(job, error, ticket) if error.sent else ""
                    if not kept:
                        lost += error.sent
                        ticket.note_refused()
                        await tries.wait_after(error)
        finally:
            if lost:
                self._follow(job, lost, kept)
        return kept

    async def _look(self, job: JobSpec, error: ServiceError, ticket: Ticket) -> str:
        """Return the job of a request that was not answered; empty where there seems to be none.

        Whoever cancelled waits for a shorter look: what turns up later is ended.
        """
        name, queue = job.name, job.settings.queue
        found = await self._in_flight.look(name, queue, error)
        if not found:
            try:
                found = await self._in_flight.await_listed(
                    name, queue, lambda: ticket.is_withdrawn
                )
            except ServiceError as failure:
                raise unanswered(name, error, failure) from failure
        return found[0] if found else ""

    def _follow(self, job: JobSpec, lost: int, kept: str) -> None:
        goes_on = f"it was submitted again, as job {kept}" if kept else "it was given up"
        self._in_flight.follow(
            job.name,
            job.settings.queue,
            f"{WITHDRAWN}; {goes_on}",
            most=lost,
            kept=kept,
            waits_s=(0.0, *self._timing.withdrawn_looks_s),
        )
