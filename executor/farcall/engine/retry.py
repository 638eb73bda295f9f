"""Retry: run a job's failed tasks again, with the bundle that is still in S3.

AWS Batch and the bucket determine which tasks these are: the tasks that Batch reports as failed,
except those whose outcome contains a result for each call, and those that an earlier retry has
run. A task runs again with all calls of its chunk. The function and arguments are copied from the
old bundle, verified by the digest in Batch, into a new one. They are not unpickled, so any farcall
can retry the tasks of any Python version.

Each task has one lineage: after a retry has run it, only that retry can be retried, so no more
than one level of retries has to be read. If two clients retry a task at the same time, each of
them stores a note first and then lists the notes. At least one of them sees the other's note, and
gives up.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
from collections import deque
from collections.abc import Collection, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from farcall.config.settings import Settings, options_of
from farcall.engine import attempt_reporter
from farcall.engine.group import TaskGroup
from farcall.engine.submitter import Again
from farcall.model import failure_reasons
from farcall.model.errors import (
    FarcallError,
    JobCancelledError,
    NothingToRetryError,
    OutOfMemoryError,
    SettingsError,
)
from farcall.model.failure_reasons import About
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.names import counted, named
from farcall.model.submission import Submission
from farcall.model.workflows import Workflow
from farcall.payload.bundle import FIXED
from farcall.payload.pickling import Origin, Packed
from farcall.payload.results import is_success
from farcall.storage import bundles, outcomes
from farcall.storage.bundles import Bundle
from farcall.storage.store import Store, number_in
from farcall_runtime import contract, envelope
from farcall_runtime.contract import PACKAGES, SHARED, ExitCode, Location
from farcall_runtime.envelope import Buffer, Part

if TYPE_CHECKING:
    from farcall.engine.session import Session

# --- Notes: which jobs are retries of a job, stored next to that job's bundle -------------------
#
# A note is written before its job is submitted, and again when the job has an ID. It is signed
# with the outcome key of the bundle whose tasks run again, so that write access to the bucket is
# not enough to forge a retry.

_MOST_BYTES = 4 * 1024 * 1024
_NOTES_AT_ONCE = 16
_IN_FLIGHT = timedelta(seconds=60)
"""Age up to which the client of a note may still be about to submit its job."""


@dataclass(frozen=True)
class Note:
    """A record of one retry.

    Attributes:
        where: Location of the retry's bundle.
        queue: Queue of the retry.
        origin: For each task of the retry, the index of the task that it runs again.
        job_id: ID of the retry; empty if it was not known yet.
        at: Time at which S3 stored the note; None before that.
    """

    where: Location
    queue: str
    origin: tuple[int, ...]
    job_id: str = ""
    at: datetime | None = field(default=None, compare=False)


def _key_of(of: Submission, bundle: str) -> str:
    """Return a note's key, which other writers of the bucket can neither guess nor crowd out."""
    name = of.where.retry_key(bundle)
    return f"{name}.{hmac.new(of.key, name.encode(), hashlib.sha256).hexdigest()[:32]}"


async def write(store: Store, of: Submission, note: Note) -> None:
    """Store a note, or replace it.

    Raises:
        ServiceError: S3 refused.
    """
    key = _key_of(of, note.where.bundle)
    content = {
        "bundle": note.where.url,
        "queue": note.queue,
        "origin": list(note.origin),
        "job": note.job_id,
    }
    await store.put(key, envelope.seal_note(of.key, key, content), quick=True)


async def read(store: Store, of: Submission) -> list[Note]:
    """Return the notes on the retries of a job; ignore unsigned ones.

    Raises:
        ServiceError: S3 refused.
    """
    prefix = of.where.retries_prefix
    keys = [key for key, _ in await store.list_keys(prefix)]
    listed = [key for key in keys if key == _key_of(of, key[len(prefix) :].rpartition(".")[0])]
    places = asyncio.Semaphore(_NOTES_AT_ONCE)

    async def one(key: str) -> Note | None:
        async with places:
            with contextlib.suppress(envelope.EnvelopeError):
                found = await store.get_dated(key, most=_MOST_BYTES)
                if found is not None:
                    return _parsed(envelope.open_note(of.key, key, found[0]), found[1])
        return None

    found = await asyncio.gather(*map(one, listed))
    return [note for note in found if note is not None]


def _parsed(content: Mapping[str, Any], at: datetime) -> Note | None:
    """Return a verified note; None if a later farcall has written it."""
    try:
        return Note(
            Location.parse(content["bundle"]),
            str(content["queue"]),
            tuple(map(int, content["origin"])),
            str(content["job"]),
            at,
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


class Retry(NamedTuple):
    """A job that is a retry of another job.

    Attributes:
        job_id: ID of the retry.
        origin: Indexes of the tasks that it runs again.
    """

    job_id: str
    origin: tuple[int, ...]


async def retries_of(session: Session, submission: Submission) -> list[Retry]:
    """Return the retries of a job that Batch still knows, the oldest first.

    Raises:
        ServiceError: AWS refused a call.
    """
    return await _confirmed(session, submission, await _notes_of(session, submission))


async def _notes_of(session: Session, submission: Submission) -> list[Note]:
    return await read(session.stores.of(submission.where.bucket), submission)


async def _confirmed(session: Session, submission: Submission, notes: list[Note]) -> list[Retry]:
    """Return the retries that notes describe and Batch knows, the oldest first."""
    details = await asyncio.gather(*(_find(session, submission, note) for note in notes))
    pairs = [
        (detail, note) for detail, note in zip(details, notes, strict=True) if detail is not None
    ]
    oldest = datetime.min.replace(tzinfo=timezone.utc)
    pairs.sort(key=lambda pair: pair[0].created_at or oldest)
    return [Retry(detail.job_id, note.origin) for detail, note in pairs]


async def _find(session: Session, of: Submission, note: Note) -> JobDetail | None:
    """Return the job of a note if Batch confirms that it is a retry of a job."""
    ids = [note.job_id]
    if not note.job_id:  # the client died before it added the ID, or is about to add it
        ids = await session.backend.find(note.where.bundle, note.queue)
    for detail in (await session.backend.describe(ids)).values():
        before = detail.environment.get(contract.ENV_RETRY_OF, "").partition(":")[0]
        carried = detail.environment.get(contract.ENV_BUNDLE, "")
        if before == of.job_id and carried == note.where.url and not detail.is_command:
            return None if await _is_withdrawn(session, note, detail) else detail
    return None


async def _is_withdrawn(session: Session, note: Note, detail: JobDetail) -> bool:
    """Return whether the client gave up the submission of a retry.

    Giving up deletes the bundle, and Batch's job is terminated if Batch accepts it anyway. Such a
    retry has no results and cannot be retried, so another retry can run the tasks.
    """
    has_success = bool(detail.status_summary.get(JobStatus.SUCCEEDED.value))
    if note.job_id or detail.status is not JobStatus.FAILED or has_success:
        return False
    store = session.stores.of(note.where.bucket)
    return await store.head(note.where.bundle_key) is None


# --- Plan: tasks that would run -----------------------------------------------------------------

CHANGEABLE = (
    *("vcpu", "memory", "num_gpus", "time_limit", "retry_attempts", "retry_on", "tags"),
    *("queue", "priority", "share_identifier", "priority_class", "max_parallel", "ttl"),
)
"""Options that a retry can change.

A submission sets them outside the job definition, on either platform.
"""

_SAME = (FIXED, PACKAGES, SHARED)
"""Facts of a bundle that apply to any subset of its tasks."""

_PARALLEL = 32
_LARGE_BYTES = 1024 * 1024
_LARGE_AT_ONCE = 2
_AHEAD = 32

T = TypeVar("T")


class FailedTask(NamedTuple):
    """A task without results.

    Attributes:
        number: Its index in its job.
        was_ended: Whether it did not fail by itself, but was cancelled.
        lacked_memory: Whether it ran out of memory.
    """

    number: int
    was_ended: bool = False
    lacked_memory: bool = False


@dataclass(frozen=True)
class Plan:
    """The tasks and options of a retry.

    Attributes:
        submission: The job.
        detail: Batch's description of the job.
        workflow: The workflow that the job belongs to.
        settings: The options, including those with which the job was submitted.
        tasks: The tasks that would run again.
        total: Number of tasks of the job, or of the named array tasks.
        unfinished: Number of tasks that have not finished.
        retries: Earlier retries of the job; their tasks are not among ``tasks``.
        noted: Bundles of the retries that notes described, whether or not they have a job.
        facts: The bundle's facts about all its tasks.
        origin: Python and cloudpickle that pickled the functions.
    """

    submission: Submission
    detail: JobDetail
    workflow: Workflow
    settings: Settings
    tasks: Sequence[FailedTask]
    total: int
    unfinished: int
    retries: Sequence[Retry]
    noted: frozenset[str]
    facts: Mapping[str, Any] = field(repr=False)
    origin: Origin

    @property
    def function(self) -> str:
        """The function's name."""
        return self.submission.name.rpartition("-")[0] or self.submission.name

    @property
    def ended(self) -> int:
        """Number of tasks that would run again and did not fail, but were cancelled."""
        return sum(task.was_ended for task in self.tasks)

    def failed_alone(self) -> Plan:
        """Return the plan without the tasks that were only cancelled."""
        return replace(self, tasks=[task for task in self.tasks if not task.was_ended])

    def with_options(self, options: Mapping[str, Any]) -> Settings:
        """Return the options of the new job.

        Raises:
            SettingsError: A value is wrong, or a retry cannot change the option.
        """
        changeable = [name for name in CHANGEABLE if name in options_of(self.settings.backend)]
        for name in options:
            if name not in changeable:
                raise SettingsError(
                    f"{name} cannot be changed for a retry, which uses the job's definition: "
                    f"only {', '.join(changeable)} can be changed. Submit the calls again to "
                    f"use another {name}.",
                    option=name,
                )
        return self.settings.replace(**options)

    def summary(self, settings: Settings) -> str:
        """Describe the tasks and options of the retry in one line.

        Args:
            settings: The options of the new job, as `with_options` returns them.
        """
        text = f"{len(self.tasks)} of {counted(self.total, 'task')} of {self.function}"
        changes = [
            f"{name} {_shown(before)} -> {_shown(after)}"
            for name in CHANGEABLE
            if (before := getattr(self.settings, name)) != (after := getattr(settings, name))
        ]
        if changes:
            text += f": {', '.join(changes)}"
        else:
            text += f", with vcpu {settings.vcpu:g} and memory {settings.memory:g} as before"
        short = sum(task.lacked_memory for task in self.tasks)
        if short and settings.memory <= self.settings.memory:
            text += f"; {short} of them ran out of memory, which is not increased"
        if self.ended:
            text += f"; {self.ended} of them did not fail, but were cancelled"
        if self.unfinished:
            text += f"; {counted(self.unfinished, 'unfinished task')} will not run again"
        return text

    def refuse(self) -> None:
        """Raise an error if no task would run.

        Raises:
            NothingToRetryError: No task of the job can run again.
        """
        if self.tasks:
            return
        nothing = (
            f"no task of job {self.submission.job_id} ({self.submission.name}) can be retried"
        )
        if self.unfinished:
            raise NothingToRetryError(
                f"{nothing} yet: {counted(self.unfinished, 'unfinished task')}. Wait until the "
                "job has finished, or cancel it with `farcall cancel`."
            )
        if self.retries:
            ids = [each.job_id for each in self.retries]
            raise NothingToRetryError(
                f"{nothing}: its failed tasks were retried before, as {named(ids)}. Retry "
                f"{'that job' if len(ids) == 1 else 'those jobs'} instead."
            )
        raise NothingToRetryError(f"{nothing}: none of its tasks has failed, or all were excluded")


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


async def plan_for(session: Session, settings: Settings, job_id: str, *others: str) -> Plan:
    """Return which tasks of a job failed, and the options with which they ran.

    Args:
        session: The event loop's session.
        settings: The options; those with which the job was submitted replace them.
        job_id: A single job, an array job, or an array task.
        others: More tasks of the same array job.

    Raises:
        JobLostError: Batch does not know the job.
        UnknownError: farcall did not submit it.
        NothingToRetryError: The job's bundle is no longer in the bucket.
        FarcallError: The job cannot be retried: a command, an electron, one node.
        ServiceError: AWS refused a call.
    """
    if "#" in job_id:
        whole = job_id.partition("#")[0]
        raise FarcallError(
            f"{job_id} is one node of job {whole}, and a retry runs all nodes. Name {whole} "
            "instead."
        )
    parent, is_child, _ = job_id.partition(":")
    detail = await session.describe(parent)
    _refuse_kind(detail)
    submission = Submission.whole(detail)
    bundle = Bundle(
        session.stores.of(submission.where.bucket), submission.where, submission.digest
    )
    facts = await _opened(submission, bundle)
    only = None
    if is_child:
        ids = job_id, *others
        await asyncio.gather(*map(session.describe, ids))  # UnknownError for an unknown task
        only = {int(each.partition(":")[2]) for each in ids}
    failed, unfinished = await _ends(session, submission, detail, only)
    notes = await _notes_of(session, submission)
    retries = await _confirmed(session, submission, notes)
    if only is not None:
        retries = [each for each in retries if not only.isdisjoint(each.origin)]
    retried = {number for each in retries for number in each.origin}
    own = await session.backend.options_of(parent)
    origin = Origin(str(facts.get("python", "")), str(facts.get("cloudpickle", "")))
    return Plan(
        submission,
        detail,
        Workflow(detail.environment.get(contract.ENV_WORKFLOW, "")),
        _as_submitted(settings, submission, detail, facts, own),
        sorted(task for task in failed if task.number not in retried),
        submission.size if only is None else len(only),
        unfinished,
        retries,
        frozenset(note.where.bundle for note in notes),
        facts,
        origin,
    )


async def until_ended(session: Session, job_id: str) -> None:
    """Wait until Batch reports a job as finished, which is later than its outcome.

    Args:
        session: The event loop's session.
        job_id: A job that has finished, or is being cancelled.

    Raises:
        JobLostError: Batch does not know the job.
        ServiceError: Batch refused the call.
    """
    while True:
        if (await session.describe(job_id)).status.is_final:
            return
        await asyncio.sleep(session.timing.status_pause_s)


def _refuse_kind(detail: JobDetail) -> None:
    """Raise an error for jobs that farcall cannot retry."""
    if detail.is_command:
        raise FarcallError(
            f"job {detail.job_id} ({detail.name}) runs a command and has no calls. Submit it "
            "again, for example with `farcall launch`."
        )
    dispatch = detail.environment.get(contract.ENV_DISPATCH, "")
    if dispatch:
        raise FarcallError(
            f"job {detail.job_id} ({detail.name}) runs electrons of Covalent, which would not "
            f"receive later results. Use ct.redispatch({dispatch!r}, "
            "reuse_previous_results=True) to run the failed electrons again."
        )


async def _opened(submission: Submission, bundle: Bundle) -> dict[str, Any]:
    about = About(submission.job_id, submission.name)
    try:
        index = await bundle.index()
    except envelope.EnvelopeError as error:
        raise _differs(error, about, submission) from error
    except FarcallError as error:
        if type(error) is not FarcallError:
            raise
        raise NothingToRetryError(
            f"no task of job {submission.job_id} ({submission.name}) can be retried: {error}"
        ) from error
    return index.meta


def _differs(error: envelope.EnvelopeError, about: About, submission: Submission) -> FarcallError:
    why = failure_reasons.unusable(error)
    sentence = f"{submission.where.url} differs from what was submitted ({error})"
    return why.kind(about.message(sentence, why.remedy), **about.fields())


def _as_submitted(
    settings: Settings,
    submission: Submission,
    detail: JobDetail,
    facts: Mapping[str, Any],
    own: Mapping[str, Any],
) -> Settings:
    """Return the options of an existing job, except those of its definition."""
    root = submission.where.root.split("/")
    found: dict[str, Any] = {
        "s3_bucket_name": submission.where.bucket,
        "prefix": "/".join(root[:-2]),
        "nodes": submission.nodes,
        "instance_type": detail.instance_type,
        "retry_attempts": detail.attempts_allowed,
        "tags": dict(detail.tags),
        "num_gpus": detail.gpus,
        "log_level": detail.environment.get(contract.ENV_LOG_LEVEL, contract.LOG_LEVEL),
        **own,
    }
    if detail.vcpu:
        found["vcpu"] = detail.vcpu
    if detail.memory_mib:
        found["memory"] = detail.memory_mib / 1024
    if detail.time_limit_s:
        found["time_limit"] = detail.time_limit_s
    if facts.get("retry_on") in ("failure", "infrastructure"):
        found["retry_on"] = facts["retry_on"]
    return settings.replace(**found)


# --- Failed tasks -------------------------------------------------------------------------------


async def _ends(
    session: Session, submission: Submission, detail: JobDetail, only: Collection[int] | None
) -> tuple[list[FailedTask], int]:
    """Return a job's failed tasks, and the number of unfinished ones.

    Args:
        session: The event loop's session.
        submission: The job.
        detail: Batch's description of the job.
        only: Indexes of the only tasks to consider.
    """
    unfinished = 0
    if not detail.array_size:
        unfinished = int(not detail.status.is_final)
        failed = [detail] if detail.status is JobStatus.FAILED else []
    elif only is not None:
        found = await session.backend.describe(map(submission.id_of, only))
        unfinished = sum(not child.status.is_final for child in found.values())
        failed = [child for child in found.values() if child.status is JobStatus.FAILED]
    else:
        # Failed tasks are listed last, so that a task that fails between the lists is in the
        # second.
        done: set[int] = set()
        if not detail.status.is_final:
            done = {child.index for child in await _children(session, detail, JobStatus.SUCCEEDED)}
        failed = await _children(session, detail, JobStatus.FAILED)
        if not detail.status.is_final:
            unfinished = submission.size - len(done | {child.index for child in failed})
    if failed:
        # If a host is lost after its task has stored the outcome, Batch reports a failed task.
        complete = await delivered(session, submission)
        failed = [child for child in failed if child.index not in complete]
        complete = await _successes(session, submission, failed)
        failed = [child for child in failed if child.index not in complete]
    return [_failed(child) for child in failed], unfinished


def _failed(child: JobDetail) -> FailedTask:
    kind = child.failure_reason().kind
    lacked_memory = kind is OutOfMemoryError or child.exit_code == ExitCode.OUT_OF_MEMORY
    return FailedTask(child.index, kind is JobCancelledError, lacked_memory)


async def _children(session: Session, detail: JobDetail, status: JobStatus) -> list[JobDetail]:
    pages = session.backend.list_children(detail.job_id, status)
    return [child async for page in pages for child in page]


async def delivered(session: Session, submission: Submission) -> set[int]:
    """Return the indexes of tasks whose results a client has collected."""
    store = session.stores.of(submission.where.bucket)
    keys = await store.list_keys(f"{submission.where.bundle_key}{contract.RECEIPTS}")
    return await store.receipted(submission, [key for key, _ in keys])


async def _successes(
    session: Session, submission: Submission, failed: Sequence[JobDetail]
) -> set[int]:
    """Return the indexes of failed tasks whose outcome contains all results."""
    store = session.stores.of(submission.where.bucket)
    doubtful = [child.index for child in failed if child.exit_code != ExitCode.RAISED]
    if not doubtful:
        return set()
    stored = await _stored(store, submission)
    attempted = await _attempted(store, submission)
    last = [index for index in doubtful if index not in stored and index in attempted]
    # A list of array tasks does not contain the number of attempts.
    described = await session.backend.describe(map(submission.id_of, last))
    few, many = asyncio.Semaphore(_LARGE_AT_ONCE), asyncio.Semaphore(_PARALLEL)

    async def is_complete(index: int) -> bool:
        key, size = submission.where.outcome_key(index), stored.get(index)
        detail = None
        if size is None:
            detail = described.get(submission.id_of(index))
            number = max(1, detail.attempts) if detail is not None else 0
            size = attempted.get(index, {}).get(number)
            key = submission.attempt_key(index, number)
        if size is None:
            return False
        async with few if size > _LARGE_BYTES else many:
            try:
                found = await outcomes.fetch(store, submission, key, size=size)
            except envelope.EnvelopeError:  # the job did not write it
                return False
        meta = found.outcome.meta if found is not None else None
        if meta is None or not is_success(meta):
            return False
        return detail is None or attempt_reporter.is_the_end(meta, detail)

    found = await asyncio.gather(*map(is_complete, doubtful))
    return {index for index, complete in zip(doubtful, found, strict=True) if complete}


async def _stored(store: Store, submission: Submission) -> dict[int, int]:
    """Return the sizes of a job's outcomes by task index."""
    found: dict[int, int] = {}
    after = ""
    while True:
        page, after = await store.list_outcomes(
            submission.where.root, bundle=submission.where.bundle, after=after
        )
        found.update({each.index: each.size for each in page})
        if not after:
            return found


async def _attempted(store: Store, submission: Submission) -> dict[int, dict[int, int]]:
    """Return the sizes of failed attempts' outcomes, by task index and attempt number."""
    prefix = submission.where.attempts_prefix
    found: dict[int, dict[int, int]] = {}
    for key, size in await store.list_keys(prefix):
        index, _, attempt = key[len(prefix) :].partition("/")
        numbers = number_in(index), number_in(attempt)
        if numbers[0] is not None and numbers[1] is not None:  # other writers can store anything
            found.setdefault(numbers[0], {})[numbers[1]] = size
    return found


# --- Submission ---------------------------------------------------------------------------------


class Retried(NamedTuple):
    """A retry that was submitted.

    Attributes:
        group: The new job, which is not tracked yet.
        origin: For each of its tasks, the index of the task that it runs again.
    """

    group: TaskGroup
    origin: tuple[int, ...]

    @property
    def submission(self) -> Submission:
        """The new job's submission."""
        return self.group.submission


async def submit(session: Session, plan: Plan, settings: Settings) -> list[Retried]:
    """Submit a plan as one job, or as several if one bundle would be too large.

    Cancelling the wait withdraws the request; a job that is accepted anyway is terminated.

    Args:
        session: The event loop's session.
        plan: The tasks to run again.
        settings: The options of the new job, as `Plan.with_options` returns them.

    Raises:
        NothingToRetryError: The plan has no tasks.
        IntegrityError: The bucket's content differs from the submission.
        SettingsError: A resource that the options name does not exist, or the options are invalid.
        SubmissionError: Batch refused the job.
        ServiceError: AWS refused a call.
    """
    plan.refuse()
    async with session.copying:  # each copy occupies a thread
        with session.at_work():
            return await _submit(session, plan, settings)


async def _submit(session: Session, plan: Plan, settings: Settings) -> list[Retried]:
    left = deque(plan.tasks)
    done: list[Retried] = []
    store = session.stores.of(plan.submission.where.bucket)
    submitter = await session.submitter(settings)
    texts = None
    with contextlib.suppress(FarcallError, envelope.EnvelopeError):  # they are only displayed
        texts = await bundles.texts_of(store, plan.submission)
    while left:
        copied = _Copied(session, plan, left, texts or [])
        claim = _Claim(store, plan, settings.queue, copied)
        again = Again(_job_id_of(plan), plan.detail.definition, plan.facts.get(SHARED) or {})
        try:
            group = await submitter.submit_together(
                settings,
                plan.function,
                copied.tasks(),
                planned=claim.take,
                workflow=plan.workflow,
                facts={name: plan.facts[name] for name in _SAME if name in plan.facts},
                again=again,
            )
        except asyncio.CancelledError:
            await claim.release()
            raise
        except envelope.EnvelopeError as error:
            about = About(plan.submission.job_id, plan.submission.name)
            raise _differs(error, about, plan.submission) from error
        submission = group.submission
        done.append(Retried(group, tuple(copied.taken)))
        note = Note(submission.where, settings.queue, done[-1].origin, submission.job_id)
        with contextlib.suppress(FarcallError):  # without it, the job is found by its name
            await write(store, plan.submission, note)
    return done


class _Claim:
    """One retry's notes, which show other clients that it runs the tasks.

    Args:
        store: The bucket.
        plan: The tasks to run again.
        queue: Queue of the retry.
        copied: The tasks in the retry's bundle.
    """

    def __init__(self, store: Store, plan: Plan, queue: str, copied: _Copied) -> None:
        self._store = store
        self._plan = plan
        self._queue = queue
        self._copied = copied
        self._own: set[str] = set()

    async def take(self, where: Location) -> None:
        """Store a note for a bundle, before its job is submitted.

        Raises:
            NothingToRetryError: Another client retries some of the tasks at the same time.
            ServiceError: S3 refused.
        """
        of = self._plan.submission
        self._own.add(where.bundle)
        await write(self._store, of, Note(where, self._queue, tuple(self._copied.taken)))
        notes = await read(self._store, of)
        if any(self._competes(note, notes) for note in notes):
            await self.release()
            raise NothingToRetryError(
                f"job {of.job_id} ({of.name}) is being retried by another client. Run "
                f"`farcall describe {of.job_id}` in a minute to see that client's job; if it is "
                "not there, retry again."
            )

    async def release(self) -> None:
        """Delete the notes, so that other clients can retry the tasks at once."""
        with contextlib.suppress(FarcallError):  # others can retry a minute later
            of = self._plan.submission
            await self._store.delete([_key_of(of, bundle) for bundle in self._own])

    def _competes(self, note: Note, notes: list[Note]) -> bool:
        """Return whether a note's retry runs the same tasks, and has or will have a job."""
        if note.where.bundle in self._own or set(note.origin).isdisjoint(self._copied.taken):
            return False
        own = [each.at for each in notes if each.where.bundle in self._own and each.at]
        since = max(own, default=datetime.now(timezone.utc))  # S3's clock, if the note was read
        return note.where.bundle not in self._plan.noted or (
            note.at is not None and note.at > since - _IN_FLIGHT
        )


def _job_id_of(plan: Plan) -> str:
    """Return the ID that the retry records: the task's if there is only one."""
    if len(plan.tasks) == 1:
        return plan.submission.id_of(plan.tasks[0].number)
    return plan.submission.job_id


class _Copied:
    """Tasks copied from one bundle into another; in a thread, during the upload.

    Args:
        session: The event loop's session.
        plan: The tasks to run again.
        left: The tasks still to be copied; copied tasks are removed.
        texts: The summary of each task of the old job, if known.

    Attributes:
        taken: Indexes of the copied tasks in the old job.
    """

    def __init__(
        self, session: Session, plan: Plan, left: deque[FailedTask], texts: Sequence[str]
    ) -> None:
        self.taken: list[int] = []
        where = plan.submission.where
        store = session.stores.of(where.bucket)
        self._bundle = Bundle(store, where, plan.submission.digest)
        self._origin = plan.origin
        self._left = left
        self._texts = texts
        self._loop = asyncio.get_running_loop()
        self._functions: dict[int, Packed] = {}

    def tasks(self) -> Iterator[tuple[Packed, Packed]]:
        """Yield the function and arguments of each task, as they were submitted."""
        ahead: deque[tuple[int, Future[tuple[Part, Buffer]]]] = deque()
        coming = (task.number for task in list(self._left))
        try:
            while True:
                while len(ahead) < _AHEAD and (index := next(coming, None)) is not None:
                    ahead.append((index, self._in_loop(self._task(index))))
                if not ahead:
                    return
                index, found = ahead.popleft()
                packed = self._packed(index, *found.result())
                self._left.popleft()
                self.taken.append(index)
                yield packed
        finally:
            for _, each in ahead:
                each.cancel()

    def _in_loop(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def _task(self, index: int) -> tuple[Part, Buffer]:
        entry, data = await self._bundle.entry(index)
        if len(data) < entry.length <= _LARGE_BYTES:
            data = await self._bundle.part(entry)
        return entry, data

    def _packed(self, index: int, entry: Part, data: Buffer) -> tuple[Packed, Packed]:
        function = self._functions.get(entry.function)
        if function is None:
            part, code = self._in_loop(self._bundle.function(entry.function)).result()
            part.check(code)
            function = self._functions[entry.function] = Packed([code], len(code), self._origin)
        if len(data) < entry.length:
            data = self._in_loop(self._bundle.part(entry)).result()
        entry.check(data)
        text = self._texts[index] if index < len(self._texts) else ""
        return function, Packed([data], len(data), self._origin, text=text)
