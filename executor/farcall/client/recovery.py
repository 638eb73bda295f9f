"""Recovery of a run whose client has died, only from the bucket and Batch.

A run's bundles have the names of its jobs, and name the queue to search. Only Batch is trusted:
the job whose environment names a bundle also has the bundle's digest and the key that signs its
outcomes.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeAlias, TypeVar

from farcall.aws.error_translation import may_pass
from farcall.backends.base import platform_of
from farcall.client.job import Job
from farcall.config.settings import Settings
from farcall.engine.retry_notes import retries_of
from farcall.engine.run import TaskRun
from farcall.engine.sender import has_begun, withdraw
from farcall.engine.session import Session, session_for
from farcall.model.errors import FarcallError, ServiceError, UnknownError
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.submission import Submission
from farcall.payload.bundle import renamed
from farcall.storage import bundles
from farcall.storage.outcomes import failed_keys
from farcall.storage.store import NO_SUCH_KEY, Arrived, Store
from farcall_runtime.contract import (
    CANCELLED,
    RECEIPTS,
    RETRIES,
    SHARED,
    Location,
    bundles_prefix,
    is_key,
    run_root,
)

_log = logging.getLogger("farcall")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
"""Names of runs and bundles. A bundle's name is its job's.

https://docs.aws.amazon.com/batch/latest/APIReference/API_SubmitJob.html
"""

_PARALLEL = 32
_MOST_NAMED = 10

R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """One client process's objects in the bucket.

    Attributes:
        name: ``<user>-<date>-<time>-<random>``, with the start time in UTC.
        bundles: Number of remaining bundles; a bundle is deleted when all of its tasks are
            delivered.
        stored_at: Time at which the first bundle was stored.
        functions: Names of the called functions, as they appear in the bucket's keys.
    """

    name: str
    bundles: int
    stored_at: datetime
    functions: tuple[str, ...] = ()


@dataclass
class _Bundle:
    """Bundle of recovered tasks.

    Attributes:
        submission: Its job.
        left: Indexes of the undelivered tasks.
        failed: Indexes of failed tasks that have run again.
    """

    submission: Submission
    left: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)


class Recovered:
    """Tasks of a run; see `BatchExecutor.recover`.

    Attributes:
        run: The run's name.
        jobs: One for each undelivered task that Batch knows. Remove jobs from this list to release
            their results.
        delivered: Number of tasks whose outcomes were deleted after delivery, except tasks of
            deleted bundles.
        unsubmitted: Names of bundles without a job: none of their tasks has run.
        forgotten: Names of bundles whose jobs Batch does not return, although they may have run:
            Batch deletes a job seven days after its end at the earliest, and a queue may be
            deleted or not accessible to this user. Their outcomes cannot be verified without the
            job.
    """

    def __init__(self, run: str, settings: Settings) -> None:
        self.run = run
        self.jobs: list[Job[Any]] = []
        self.delivered = 0
        self.unsubmitted: list[str] = []
        self.forgotten: list[str] = []
        self._settings = settings
        self._bundles: list[_Bundle] = []

    def __repr__(self) -> str:
        return (
            f"<Recovered {self.run}: {len(self.jobs)} jobs, {self.delivered} delivered before, "
            f"{len(self.unsubmitted)} bundles unsubmitted, {len(self.forgotten)} forgotten>"
        )

    async def discard(self) -> None:
        """Delete the bundles whose tasks have all been delivered, now or before.

        They are kept until then for `Job.calls`, unlike the bundles of an undisturbed run. After
        that, the run has only failed and unsubmitted tasks, which the bucket's lifecycle rule
        deletes. A failed deletion is not an error.
        """
        session = await session_for(self._settings)
        ended = [bundle for bundle in self._bundles if not bundle.left]
        self._bundles = [bundle for bundle in self._bundles if bundle.left]
        for bundle in ended:
            where, failed = bundle.submission.where, bundle.failed
            store = session.stores.of(where.bucket)
            receipts: list[tuple[str, int]] = []
            with contextlib.suppress(FarcallError):
                receipts = await store.list_keys(f"{where.bundle_key}{RECEIPTS}")
                if session.backend.capabilities.marks_ended_children:
                    receipts += await store.list_keys(f"{where.bundle_key}{CANCELLED}")
            failures = functools.partial(failed_keys, store, bundle.submission, failed)
            store.end_bundle(where, delete=True, failures=failures if failed else None)
            store.delete_later(key for key, _ in receipts)  # after the bundle

    def _add(self, bundle: _Bundle, index: int, outcome: Arrived | None) -> None:
        job_id = bundle.submission.id_of(index)
        bundle.left.add(index)

        def discard() -> None:
            bundle.left.discard(index)
            if run.id != job_id:
                bundle.failed.add(index)

        place = bundle.submission, index
        run = TaskRun(job_id, self._settings, place, on_discarded=discard)
        if outcome is not None:
            run.record_outcome(outcome)
        self.jobs.append(Job(run))


async def runs(session: Session, settings: Settings) -> list[Run]:
    """Return the runs that have objects in the bucket, the oldest first.

    Raises:
        SettingsError: The bucket does not exist.
        ServiceError: An S3 call failed.
    """
    store = session.stores.of(settings.s3_bucket_name)
    listed = await store.list_folders(f"{run_root(settings.prefix, '')}/")
    names = [name for name in listed if _NAME.fullmatch(name) and name != SHARED]
    roots = [run_root(settings.prefix, name) for name in names]
    listings = await _each(lambda root: _bundles(store, root), roots)
    left = [
        Run(name, len(stored), min(stored.values()), _functions(stored))
        for name, (stored, *_) in zip(names, listings, strict=True)
        if stored
    ]
    return sorted(left, key=lambda run: run.stored_at)


def _functions(bundles: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({name.rpartition("-")[0] for name in bundles} - {""}))


async def recover(session: Session, settings: Settings, run: str) -> Recovered:
    """Find every task of a run; see `BatchExecutor.recover`."""
    store = session.stores.of(settings.s3_bucket_name)
    root = run_root(settings.prefix, run)
    is_name = is_key(run) and "/" not in run
    listed = await _bundles(store, root) if is_name else _Listed()
    stored = listed.stored
    if not stored:
        raise await _unknown(session, settings, run)
    await session.warm.adopt(store, root, settings)
    places = [Location(settings.s3_bucket_name, root, bundle) for bundle in stored]
    queues = await _queues(settings, store, places)
    timing = session.timing
    jobs_by_place, unanswered = await _find_jobs(session, queues, timing.recover_polls_s)
    succeeded = await _each(lambda one: _succeeded(session, *one), list(jobs_by_place.values()))
    # Listed last: the outcomes of tasks that have succeeded by now were stored, unless deleted.
    arrived = await _outcomes(store, root)
    recovered = Recovered(run, settings)
    again, gone = await _retried(session, jobs_by_place, listed.retried)
    for (where, (submission, _)), done in zip(jobs_by_place.items(), succeeded, strict=True):
        done |= await store.receipted(submission, listed.receipts.get(where.bundle, ()))
        done |= gone[where]
        bundle = _Bundle(submission, failed=again[where] | gone[where])
        recovered._bundles.append(bundle)
        outcomes = arrived.get(where.bundle, {})
        for index in range(submission.size):
            if index in again[where]:
                continue
            outcome = None if index in gone[where] else outcomes.get(index)
            if outcome is None and index in done:
                recovered.delivered += 1
                continue
            recovered._add(bundle, index, outcome)
    oldest = datetime.now(UTC) - timedelta(seconds=timing.remembered_s)
    for where in places:
        if where not in jobs_by_place:
            may_have_run = (
                where in unanswered or where.bundle in arrived or stored[where.bundle] < oldest
            )
            (recovered.forgotten if may_have_run else recovered.unsubmitted).append(where.bundle)
    return recovered


class _Listed(NamedTuple):
    """Bundles of a run.

    Attributes:
        stored: Storage times by name.
        receipts: Keys of the receipts by the bundle's name.
        retried: Names of bundles with notes on retries.
    """

    stored: Mapping[str, datetime] = {}
    receipts: Mapping[str, list[str]] = {}
    retried: Collection[str] = frozenset()


async def _bundles(store: Store, root: str) -> _Listed:
    prefix = bundles_prefix(root)
    stored: dict[str, datetime] = {}
    receipts: dict[str, list[str]] = {}
    retried: set[str] = set()
    for name, (_, at, _) in (await store.list_stored(prefix)).items():
        bundle, is_receipt, _ = name.partition(RECEIPTS)
        if is_receipt:
            receipts.setdefault(bundle, []).append(f"{prefix}{name}")
        elif RETRIES in name:
            retried.add(name.partition(RETRIES)[0])
        elif _NAME.fullmatch(name):  # other users may have stored other objects there
            stored[name] = at
    return _Listed(stored, receipts, retried)


_Tasks: TypeAlias = "dict[Location, set[int]]"


async def _retried(
    session: Session,
    jobs: Mapping[Location, tuple[Submission, JobDetail]],
    retried: Collection[str],
) -> tuple[_Tasks, _Tasks]:
    """Return the tasks that other jobs of the run run again, and those delivered by a retry."""
    again: _Tasks = defaultdict(set)
    gone: _Tasks = defaultdict(set)
    submissions = [each for where, (each, _) in jobs.items() if where.bundle in retried]
    for submission in submissions:
        for retry in await retries_of(session, submission):
            store = session.stores.of(retry.where.bucket)
            if retry.where in jobs:
                again[submission.where].update(retry.origin)
            elif await store.head(retry.where.bundle_key) is None:
                gone[submission.where].update(retry.origin)
    return again, gone


async def find(session: Session, settings: Settings, where: Location) -> Submission | None:
    """Return the job of a bundle from Batch; None if it was never submitted.

    If there is no job, the caller submits again. So the bundle is deleted in this case: a job that
    turns up later finds no payload and runs nothing. If a job is found at the last moment, its
    bundle is restored.

    Raises:
        FarcallError: Whether there is a job cannot be determined.
        ServiceError: AWS refused a call.
    """
    store = session.stores.of(where.bucket)
    queues = await _queues(settings, store, [where])
    search = functools.partial(_search, session, store, queues, where)
    job = await search(session.timing.recover_polls_s)
    if job is not None:
        return job
    new = renamed(where)
    try:
        job = await withdraw(store, where, new, search)
    except ServiceError as error:
        if error.code != NO_SUCH_KEY:
            raise
        return await search()  # without its bundle, a job runs nothing
    if job is None:
        await store.delete([new.bundle_key])
    return job


async def _search(
    session: Session,
    store: Store,
    queues: Mapping[Location, list[str]],
    where: Location,
    waits_s: Sequence[float] = (0.0,),
) -> Submission | None:
    """Search for the job of a bundle; None if there is no trace of one."""
    jobs, unanswered = await _find_jobs(session, queues, waits_s)
    if where in jobs:
        return jobs[where][0]
    if where in unanswered:
        raise FarcallError(
            f"cannot tell whether {where.bundle} was submitted: its queue could not be listed"
        )
    if await has_begun(store, where):
        raise FarcallError(
            f"the job of {where.bundle} has started, but {platform_of(session.backend)} does not "
            "list it: lists lag by some seconds, and finished jobs are forgotten after some time. "
            "Try again"
        )
    return None


async def _queues(
    settings: Settings, store: Store, places: list[Location]
) -> dict[Location, list[str]]:
    """Return the queues to search for the jobs of bundles, the most likely first."""
    hints = await _each(lambda where: bundles.queue_of(store, where), places)
    # Kubernetes has jobs without a queue; an empty name means the whole namespace.
    return {
        where: list(dict.fromkeys(q for q in (hint, settings.queue) if q)) or [""]
        for where, hint in zip(places, hints, strict=True)
    }


async def _find_jobs(
    session: Session, queues: Mapping[Location, list[str]], waits_s: Sequence[float]
) -> tuple[dict[Location, tuple[Submission, JobDetail]], set[Location]]:
    """Search for the jobs of bundles.

    Args:
        session: The event loop's session.
        queues: The queues of each bundle.
        waits_s: Seconds before each list request.

    Returns:
        The existing jobs in the order of their bundles, and the bundles whose state is unknown
        because Batch refused to list their queue.
    """
    places = list(queues)
    jobs: dict[Location, tuple[Submission, JobDetail]] = {}
    unanswered: set[Location] = set()
    for wait_s in waits_s:
        await asyncio.sleep(wait_s)
        missing = [where for where in places if where not in jobs]
        named = await _each(lambda where: _named(session, where, queues[where]), missing)
        unanswered = {where for where, ids in zip(missing, named, strict=True) if ids is None}
        details = await session.backend.describe(job_id for ids in named for job_id in ids or ())
        for detail in details.values():
            try:
                submission = Submission.whole(detail)
            except FarcallError:  # another user's job with the same name
                continue
            if submission.where in queues:
                jobs[submission.where] = submission, detail
        if len(jobs) == len(places):
            break
    return {where: jobs[where] for where in places if where in jobs}, unanswered - jobs.keys()


async def _named(session: Session, where: Location, queues: list[str]) -> list[str] | None:
    """Return the IDs of jobs with a bundle's name, from the first queue that has any.

    Returns:
        None if there are none and the first queue could not be listed.
    """
    refused: dict[str, ServiceError] = {}
    for queue in queues:
        try:
            job_ids = await session.backend.find(where.bundle, queue)
        except ServiceError as error:
            if may_pass(error):
                raise
            refused[queue] = error
        else:
            if job_ids:
                return job_ids
    if len(refused) == len(queues):
        raise refused[queues[-1]]
    if queues[0] in refused:
        _log.warning(
            "%s was in queue %s, which cannot be listed: %s",
            where.bundle,
            queues[0],
            refused[queues[0]],
        )
        return None
    return []


async def _succeeded(session: Session, submission: Submission, detail: JobDetail) -> set[int]:
    if detail.status is JobStatus.SUCCEEDED:  # for an array, every task
        return set(range(submission.size))
    if submission.size == 1:
        return set()
    pages = session.backend.list_children(submission.job_id, JobStatus.SUCCEEDED)
    return {child.index async for page in pages for child in page}


async def _outcomes(store: Store, root: str) -> dict[str, dict[int, Arrived]]:
    """Return the objects in a run's inbox, by bundle and number."""
    arrivals: dict[str, dict[int, Arrived]] = {}
    after = ""
    while True:
        page, after = await store.list_outcomes(root, after=after)
        for arrived in page:
            arrivals.setdefault(arrived.bundle, {})[arrived.index] = arrived
        if not after:
            return arrivals


async def _unknown(session: Session, settings: Settings, run: str) -> UnknownError:
    where = f"s3://{settings.s3_bucket_name}/{run_root(settings.prefix, '')}/"
    there = [each.name for each in await runs(session, settings)]
    named = ", ".join(there[-_MOST_NAMED:]) or "none"
    if len(there) > _MOST_NAMED:
        named = f"..., {named}"
    return UnknownError(
        f"run {run!r} has nothing left in {where}: either it never existed, or all its results "
        f"have been delivered. Existing runs: {named}"
    )


async def _each(function: Callable[[T], Awaitable[R]], items: Sequence[T]) -> list[R]:
    """Call a function with each item, a limited number at a time."""
    places = asyncio.Semaphore(_PARALLEL)

    async def one(item: T) -> R:
        async with places:
            return await function(item)

    return await asyncio.gather(*map(one, items))
