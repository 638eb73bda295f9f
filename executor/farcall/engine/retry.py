"""Retry: the calls of a job that gave no value run again, from the bundle that was kept.

Which calls these are Batch and the bucket tell: what Batch calls failed, without what its outcome
says has returned, and without what an earlier retry has run or still runs. Their bytes go from the
old bundle, verified by the digest that Batch holds, into a new one; nothing is unpickled, so any
farcall can do that for any Python.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any, NamedTuple, TypeVar

from farcall.engine import attempt_reporter
from farcall.engine.session import Session
from farcall.engine.submitter import Again
from farcall.model import endings
from farcall.model.endings import About
from farcall.model.errors import (
    FarcallError,
    JobCancelledError,
    NothingToRetryError,
    OutOfMemoryError,
    SettingsError,
)
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.names import counted
from farcall.model.settings import Settings, options_of
from farcall.model.submission import Submission
from farcall.model.workflows import Workflow
from farcall.payload.bundle import CALLS, CHUNK, FIXED
from farcall.payload.pickling import Origin, Packed
from farcall.payload.results import is_success
from farcall.storage import bundles, outcomes
from farcall.storage.bundles import Bundle
from farcall.storage.store import Store, number_in
from farcall_runtime import contract, envelope
from farcall_runtime.contract import PACKAGES, SHARED, SKIP, CallStatus, ExitCode, Location
from farcall_runtime.envelope import Buffer, Part

# --- Notes on retries: which jobs run tasks of a bundle again, told beside that bundle ----------
#
# A note is written before its job is submitted, and once more when the job has an ID. It is signed
# with the outcome key of the bundle whose tasks they are, so nobody who can but write the bucket
# makes a call look as if it had been run again.


ORIGIN = "origin"
"""Fact of a retry's bundle, and part of its note: the number that each task had before."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_MOST_NOTES = 1000
_MOST_BYTES = 4 * 1024 * 1024
_NOTES_AT_ONCE = 16


@dataclass(frozen=True)
class Note:
    """What is told of one job that runs tasks again.

    Attributes:
        where: Its bundle.
        queue: Its queue.
        origin: The number that each of its tasks had before.
        skip: Calls of its tasks that it leaves out, as `envelope.Index.skipped` has them, by the
            number of the task there.
        job_id: Its ID; empty where it was not known yet.
    """

    where: Location
    queue: str
    origin: tuple[int, ...]
    skip: Mapping[int, int] = field(default_factory=dict)
    job_id: str = ""


async def write(store: Store, of: Submission, note: Note) -> None:
    """Store a note, or store it again.

    Raises:
        ServiceError: S3 refused.
    """
    key = of.where.retry_key(note.where.bundle)
    said = {
        "bundle": note.where.url,
        "queue": note.queue,
        ORIGIN: list(note.origin),
        "skip": {str(number): f"{bits:x}" for number, bits in note.skip.items()},
        "job": note.job_id,
    }
    await store.put(key, envelope.seal_note(of.key, key, said), quick=True)


async def read(store: Store, of: Submission) -> list[Note]:
    """Return the notes on who runs tasks of a job again; those that others wrote are passed by.

    Raises:
        ServiceError: S3 refused.
    """
    prefix = of.where.retries_prefix
    listed = [
        key for key, _ in await store.list_keys(prefix) if _NAME.fullmatch(key[len(prefix) :])
    ]
    places = asyncio.Semaphore(_NOTES_AT_ONCE)

    async def one(key: str) -> Note | None:
        async with places:
            with contextlib.suppress(envelope.EnvelopeError):
                found = await store.get_dated(key, most=_MOST_BYTES)
                if found is not None:
                    return _understood(envelope.open_note(of.key, key, found[0]))
        return None

    found = await asyncio.gather(*map(one, listed[:_MOST_NOTES]))
    return [note for note in found if note is not None]


def _understood(said: Mapping[str, Any]) -> Note | None:
    """Return what a verified note says; None of one that a later farcall has written."""
    try:
        return Note(
            Location.parse(said["bundle"]),
            str(said["queue"]),
            tuple(map(int, said[ORIGIN])),
            {int(number): int(bits, 16) for number, bits in said["skip"].items()},
            str(said["job"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


RETRY_OF, SIZES = "retry_of", "sizes"
"""Facts of a retry's bundle: the job whose calls these were; and by the number of a task, how many
calls its arguments are, those that are left out among them."""

CHANGEABLE = (
    *("vcpu", "memory", "num_gpus", "time_limit", "retry_attempts", "retry_on", "tags"),
    *("queue", "priority", "share_identifier"),
    *("queue", "priority_class", "max_parallel", "ttl"),
)
"""Options that a retry may have of its own: all that a submission says beside its definition, on
each platform those that it has."""

_SAME = (FIXED, PACKAGES, SHARED)
"""Facts of a bundle that are as true of some of its tasks."""

_PARALLEL = 32
_LARGE_BYTES = 1024 * 1024
_LARGE_AT_ONCE = 2
_AHEAD = 32
_STEP_BYTES = 8 * 1024 * 1024
_LARGEST_SKIPS = 8 * 1024 * 1024
"""Characters of what is left out: each container reads it, in an index of 16 MiB at most."""

_DEEPEST = 100
"""Retries of retries that are looked into."""

_ALL = -1
"""Bits of the calls of a task, all of them, however many there are."""

T = TypeVar("T")


class Lacking(NamedTuple):
    """A task with calls that gave no value.

    Attributes:
        number: Its number in its job.
        skip: Its calls that are not to run again: bits, the lowest one for the first.
        size: How many calls its arguments are; None where nothing tells.
        was_ended: Whether it did not fail, but was ended by somebody or with the others.
        lacked_memory: Whether it ran out of memory.
    """

    number: int
    skip: int = 0
    size: int | None = None
    was_ended: bool = False
    lacked_memory: bool = False

    @property
    def calls(self) -> int:
        """How many of its calls run again; 1 where nothing tells how many it has."""
        return max(1, (self.size or 1) - self.skip.bit_count())


@dataclass(frozen=True)
class Plan:
    """What would run again of a job.

    Attributes:
        submission: The job.
        detail: What Batch says of it.
        workflow: What it belongs to.
        settings: The options, with those that the job was submitted with.
        tasks: The tasks that would run again, by their numbers.
        total: How many calls the job makes.
        succeeded: How many of them gave a value, in the job or in a retry of it.
        unfinished: How many tasks have not ended, there or in a retry.
        facts: What the job's bundle says of all its tasks.
        origin: Who pickled the functions in it.
        noted: The retries that there were.
    """

    submission: Submission
    detail: JobDetail
    workflow: Workflow
    settings: Settings
    tasks: Sequence[Lacking]
    total: int
    succeeded: int
    unfinished: int
    facts: Mapping[str, Any] = field(repr=False)
    origin: Origin
    noted: Sequence[Note] = field(default=(), repr=False)

    @property
    def function(self) -> str:
        """The function's name."""
        return self.submission.name.rpartition("-")[0] or self.submission.name

    @property
    def calls(self) -> int:
        """How many calls would run again."""
        return sum(task.calls for task in self.tasks)

    @property
    def ended(self) -> int:
        """How many of these did not fail, but were ended."""
        return sum(task.calls for task in self.tasks if task.was_ended)

    def failed_alone(self) -> Plan:
        """Return the same without the tasks that were only ended."""
        return replace(self, tasks=[task for task in self.tasks if not task.was_ended])

    def only(self, indexes: Sequence[int]) -> Plan:
        """Return the same for some of the tasks alone."""
        wanted = set(indexes)
        return replace(self, tasks=[task for task in self.tasks if task.number in wanted])

    def with_options(self, options: Mapping[str, Any]) -> Settings:
        """Return the options of the new job.

        Raises:
            SettingsError: A value is wrong, or the option is not one that can be another.
        """
        changeable = [name for name in CHANGEABLE if name in options_of(self.settings.backend)]
        for name in options:
            if name not in changeable:
                raise SettingsError(
                    f"{name} cannot be changed for a retry, which runs in the job definition of "
                    f"the job: {', '.join(changeable)} can; submit the calls again for another "
                    f"{name}",
                    option=name,
                )
        return self.settings.replace(**options)

    def tell(self, settings: Settings) -> str:
        """Say what would run, and with what.

        Args:
            settings: The options of the new job, as `with_options` gives them.
        """
        text = f"{self.calls} of {counted(self.total, 'call')} of {self.function}"
        changes = [
            f"{name} {_shown(before)} -> {_shown(after)}"
            for name in CHANGEABLE
            if (before := getattr(self.settings, name)) != (after := getattr(settings, name))
        ]
        if changes:
            text += f": {', '.join(changes)}"
        else:
            text += f", with vcpu {settings.vcpu:g} and memory {settings.memory:g} as before"
        short = sum(task.calls for task in self.tasks if task.lacked_memory)
        if short and settings.memory <= self.settings.memory:
            text += f"; {short} of them ran out of memory, which is no more than it was"
        if self.ended:
            text += f"; {self.ended} of them did not fail, but were ended"
        if self.unfinished:
            text += f"; {counted(self.unfinished, 'task')} that go on are left alone"
        return text

    def refuse(self) -> None:
        """Refuse to run nothing.

        Raises:
            NothingToRetryError: No call of the job is to run again.
        """
        if self.tasks:
            return
        job = f"job {self.submission.job_id} ({self.submission.name})"
        if self.unfinished:
            raise NothingToRetryError(
                f"nothing of {job} has failed; {counted(self.unfinished, 'task')} of it or of its "
                "retries have not ended: wait for them, or end them by farcall cancel"
            )
        raise NothingToRetryError(
            f"nothing of {job} is to run again: none of its calls lacks a value, or those that do "
            "were left out"
        )


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


# --- what would run ---------------------------------------------------------------------------


async def look(session: Session, settings: Settings, job_id: str) -> Plan:
    """Find out which calls of a job gave no value, and with what they ran.

    Args:
        session: The event loop's session.
        settings: The options; those that the job was submitted with are put in their place.
        job_id: A plain job, an array as a whole, or a child of one.

    Raises:
        JobLostError: Batch does not know the job.
        UnknownError: farcall did not submit it.
        NothingToRetryError: What was submitted is gone from the bucket.
        FarcallError: It is a job that cannot be retried: a command, an electron, one node.
        ServiceError: AWS refused a call.
    """
    if "#" in job_id:
        whole = job_id.partition("#")[0]
        raise FarcallError(
            f"{job_id} is one node of job {whole}: a retry runs all nodes, so name {whole}"
        )
    parent, is_child, index = job_id.partition(":")
    detail = await session.describe(parent)
    _refuse_kind(detail)
    submission = Submission.whole(detail)
    bundle = Bundle(
        session.stores.of(submission.where.bucket), submission.where, submission.digest
    )
    facts = await _opened(submission, bundle)
    calls = await _calls(bundle, facts, submission.size)
    only = None
    if is_child:
        await session.describe(job_id)  # that there is such a child
        only = [int(index)]
    ends = await _ends(session, submission, detail, calls, only)
    noted = await read(session.stores.of(submission.where.bucket), submission)
    await _take_in(session, submission, noted, ends, _DEEPEST)
    wanted = range(submission.size) if only is None else only
    own = await session.backend.options_of(parent)
    origin = Origin(str(facts.get("python", "")), str(facts.get("cloudpickle", "")))
    return Plan(
        submission,
        detail,
        Workflow(detail.environment.get(contract.ENV_WORKFLOW, "")),
        _as_submitted(settings, submission, detail, facts, own),
        [ends.lacking[index] for index in sorted(ends.lacking)],
        sum(calls[index].run for index in wanted),
        sum(
            calls[index].run - (ends.lacking[index].calls if index in ends.lacking else 0)
            for index in wanted
            if index not in ends.unfinished
        ),
        len(ends.unfinished),
        facts,
        origin,
        noted,
    )


async def until_ended(session: Session, job_id: str) -> None:
    """Wait until Batch knows of a job's end: its outcome tells sooner, and so does who ends it.

    Args:
        session: The event loop's session.
        job_id: A job that has ended, or is being ended.

    Raises:
        JobLostError: Batch does not know the job.
        ServiceError: Batch refused the call.
    """
    while True:
        if (await session.describe(job_id)).status.is_final:
            return
        await asyncio.sleep(session.timing.status_pause_s)


def _refuse_kind(detail: JobDetail) -> None:
    """Refuse jobs that have no calls of their own to be run again."""
    if detail.is_command:
        raise FarcallError(
            f"job {detail.job_id} ({detail.name}) runs a command and has no calls; submit it "
            "again, as by farcall launch"
        )
    dispatch = detail.environment.get(contract.ENV_DISPATCH, "")
    if dispatch:
        raise FarcallError(
            f"job {detail.job_id} ({detail.name}) is of electrons of Covalent's, which would not "
            f"learn of values that come later: ct.redispatch({dispatch!r}, reuse_previous_results="
            "True) runs again what failed"
        )


async def _opened(submission: Submission, bundle: Bundle) -> dict[str, Any]:
    """Return what a job's bundle says, once it is known to be the one that was submitted."""
    about = About(submission.job_id, submission.name)
    try:
        index = await bundle.index()
    except envelope.EnvelopeError as error:
        raise _differs(error, about, submission) from error
    except FarcallError as error:
        if type(error) is not FarcallError:
            raise
        raise NothingToRetryError(
            f"nothing of job {submission.job_id} ({submission.name}) can run again: {error}"
        ) from error
    return index.meta


def _differs(error: envelope.EnvelopeError, about: About, submission: Submission) -> FarcallError:
    why = endings.unusable(error)
    sentence = f"{submission.where.url} is not what was submitted ({error})"
    return why.kind(about.tell(sentence, why.remedy), **about.fields())


class _Calls(NamedTuple):
    """The calls that a task of a job makes.

    Attributes:
        size: How many its arguments are; None where nothing tells.
        skip: Which of them it leaves out, as bits.
    """

    size: int | None
    skip: int

    @property
    def run(self) -> int:
        """How many it makes; 1 where nothing tells."""
        return max(1, (self.size or 1) - self.skip.bit_count())


async def _calls(bundle: Bundle, facts: Mapping[str, Any], tasks: int) -> list[_Calls]:
    index = await bundle.index()
    found = range(tasks)
    return [_Calls(_size_of(facts, entry, tasks), index.skipped(entry)) for entry in found]


def _size_of(facts: Mapping[str, Any], entry: int, entries: int) -> int | None:
    """Return how many calls the arguments of a task are; None where its bundle does not say."""
    listed = facts.get(SIZES)
    if isinstance(listed, dict):
        found = listed.get(str(entry))
        return found if isinstance(found, int) else None
    chunk, calls = facts.get(CHUNK), facts.get(CALLS)
    if not isinstance(chunk, int) or not isinstance(calls, int):
        return None
    return min(chunk, max(1, calls - chunk * entry)) if entry < entries else None


def _as_submitted(
    settings: Settings,
    submission: Submission,
    detail: JobDetail,
    facts: Mapping[str, Any],
    own: Mapping[str, Any],
) -> Settings:
    """Return the options that make a job like one that there is, except its definition."""
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


# --- how the tasks ended ----------------------------------------------------------------------


@dataclass
class _Ends:
    """How the tasks of a job ended: those that are in neither have a value.

    Attributes:
        lacking: Tasks with calls that gave no value, by their numbers.
        unfinished: Numbers of those that have not ended.
    """

    lacking: dict[int, Lacking] = field(default_factory=dict)
    unfinished: set[int] = field(default_factory=set)


async def _ends(
    session: Session,
    submission: Submission,
    detail: JobDetail,
    calls: Sequence[_Calls],
    only: Sequence[int] | None = None,
) -> _Ends:
    """Find out which tasks of a job have ended without a value, by Batch and the bucket."""
    found = _Ends()
    if not detail.array_size:
        if not detail.status.is_final:
            found.unfinished.add(0)
        failed = [detail] if detail.status is JobStatus.FAILED else []
    elif only is not None:
        ids = [submission.id_of(index) for index in only]
        children = list((await session.backend.describe(ids)).values())
        failed = [child for child in children if child.status is JobStatus.FAILED]
        found.unfinished.update(each.index for each in children if not each.status.is_final)
    else:
        # Those that failed are listed last: who ends between the lists is in the second one.
        done: set[int] = set()
        if not detail.status.is_final:
            done = {child.index for child in await _children(session, detail, JobStatus.SUCCEEDED)}
        failed = await _children(session, detail, JobStatus.FAILED)
        if not detail.status.is_final:
            ended = done | {child.index for child in failed}
            found.unfinished.update(set(range(submission.size)) - ended)
    delivered = await _delivered(session, submission) if failed else set()
    failed = [child for child in failed if child.index not in delivered]
    told = await _told(session, submission, failed, calls)
    for child in failed:
        lacking = _lacking(child, told.get(child.index, 0), calls[child.index])
        if lacking is not None:
            found.lacking[child.index] = lacking
    return found


async def _delivered(session: Session, submission: Submission) -> set[int]:
    """Return the tasks whose values a client has: a lost host may end them as failed later."""
    store = session.stores.of(submission.where.bucket)
    keys = await store.list_keys(f"{submission.where.bundle_key}{contract.RECEIPTS}")
    return await store.receipted(submission, [key for key, _ in keys])


def _lacking(child: JobDetail, returned: int, task: _Calls) -> Lacking | None:
    """Return what a task that failed lacks; None where each of its calls has a value.

    Args:
        child: What Batch says of it.
        returned: Which of the calls that it made have returned, as bits.
        task: Its calls.
    """
    if returned == _ALL:
        return None
    skip = _left_out(_in_all(returned, task.skip), task.skip, task.size)
    if skip is None:
        return None
    kind = child.verdict().kind
    return Lacking(
        child.index,
        skip,
        task.size,
        was_ended=kind is JobCancelledError,
        lacked_memory=kind is OutOfMemoryError or child.exit_code == ExitCode.OUT_OF_MEMORY,
    )


async def _children(session: Session, detail: JobDetail, status: JobStatus) -> list[JobDetail]:
    pages = session.backend.list_children(detail.job_id, status)
    return [child async for page in pages for child in page]


async def _told(
    session: Session,
    submission: Submission,
    failed: Sequence[JobDetail],
    calls: Sequence[_Calls],
) -> dict[int, int]:
    """Return which calls of failed tasks have returned anyway, as their outcomes say."""
    store = session.stores.of(submission.where.bucket)
    # Of a task of one call that raised there is nothing to be learnt.
    doubtful = [
        child
        for child in failed
        if calls[child.index].size != 1 or child.exit_code != ExitCode.RAISED
    ]
    if not doubtful:
        return {}
    stored = await _stored(store, submission)
    attempted = await _attempted(store, submission)
    last = {
        child.index: child
        for child in doubtful
        if child.index not in stored and child.index in attempted
    }
    # Of a child a list does not tell how many attempts it had.
    described = await session.backend.describe(submission.id_of(index) for index in last)
    few, many = asyncio.Semaphore(_LARGE_AT_ONCE), asyncio.Semaphore(_PARALLEL)

    async def one(index: int) -> tuple[int, int]:
        key, size = submission.where.outcome_key(index), stored.get(index)
        detail = None
        if size is None:
            detail = described.get(submission.id_of(index))
            number = max(1, detail.attempts) if detail is not None else 0
            size = attempted.get(index, {}).get(number)
            key = submission.attempt_key(index, number)
        if size is None:
            return index, 0
        async with few if size > _LARGE_BYTES else many:
            try:
                found = await outcomes.fetch(store, submission, key, size=size)
            except envelope.EnvelopeError:  # somebody else's: its calls have no value
                return index, 0
        meta = found.outcome.meta if found is not None else None
        if meta is None:
            return index, 0
        is_end = detail is None or attempt_reporter.is_the_end(meta, detail)
        if is_end and is_success(meta):
            return index, _ALL
        return index, _returned(meta)

    return dict(await asyncio.gather(*(one(child.index) for child in doubtful)))


def _returned(meta: Mapping[str, Any]) -> int:
    """Return the calls of a task that have returned, as bits, by what its outcome says."""
    records = meta.get("results", ())
    if meta.get("nodes", 1) > 1 or meta.get("node") is not None:  # all nodes run it again
        return 0
    bits = 0
    for number, record in enumerate(records):
        bits |= (record["status"] == CallStatus.RETURNED) << number
    return bits


async def _stored(store: Store, submission: Submission) -> dict[int, int]:
    """Return the sizes of the outcomes that a job has left, by the numbers of its tasks."""
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
    """Return likewise what attempts have left, by the numbers of task and attempt."""
    prefix = submission.where.attempts_prefix
    found: dict[int, dict[int, int]] = {}
    for key, size in await store.list_keys(prefix):
        index, _, attempt = key[len(prefix) :].partition("/")
        numbers = number_in(index), number_in(attempt)
        if numbers[0] is not None and numbers[1] is not None:  # anybody may have put others there
            found.setdefault(numbers[0], {})[numbers[1]] = size
    return found


# --- retries that there were ------------------------------------------------------------------


async def _take_in(
    session: Session, of: Submission, noted: Sequence[Note], ends: _Ends, deep: int
) -> None:
    """Leave out the calls that retries of a job have run well, and those that they still run."""
    for note in noted:
        lacking, unfinished = await _ends_of(session, of, note, deep)
        if lacking is None:
            continue
        for number, index in enumerate(note.origin):
            before = ends.lacking.get(index)
            if before is None:
                continue
            if number in unfinished:
                del ends.lacking[index]
                ends.unfinished.add(index)
                continue
            after = lacking.get(number)
            if after is None:  # what it left out had a value before
                del ends.lacking[index]
                continue
            skip = _left_out(before.skip | after.skip, before.skip, before.size)
            if skip is None:
                del ends.lacking[index]
                continue
            ends.lacking[index] = before._replace(
                skip=skip,
                was_ended=after.was_ended,
                lacked_memory=after.lacked_memory,
            )


async def _ends_of(
    session: Session, of: Submission, note: Note, deep: int
) -> tuple[dict[int, Lacking] | None, set[int]]:
    """Return how the tasks of a retry ended; None where there is no such job."""
    detail = await find(session, of, note)
    if detail is None or deep == 0:
        return None, set()
    submission = Submission.whole(detail)
    if submission.size != len(note.origin):
        return None, set()
    calls = [_Calls(None, note.skip.get(number, 0)) for number in range(submission.size)]
    ends = await _ends(session, submission, detail, calls)
    if ends.lacking:
        noted = await read(session.stores.of(submission.where.bucket), submission)
        await _take_in(session, submission, noted, ends, deep - 1)
    return ends.lacking, ends.unfinished


def _in_all(returned: int, skip: int) -> int:
    """Return which calls of all have a value, given those of the calls that were run.

    Args:
        returned: Which have returned, counted among those that were run.
        skip: Which were left out.
    """
    bits, number = skip, 0
    while returned:
        if not skip >> number & 1:
            bits |= (returned & 1) << number
            returned >>= 1
        number += 1
    return bits


def _left_out(returned: int, skip: int, size: int | None) -> int | None:
    """Return which calls of a task that failed need not run again; None where each has a value.

    The value of a single call counts for nothing where its job was ended after it: whoever waits
    for that has the job's error. So it runs again.

    Args:
        returned: Which calls have returned, with those that were left out.
        skip: Which were left out.
        size: How many there are; None where nothing tells.
    """
    if size is None or returned.bit_count() < size:
        return returned
    return skip if size - skip.bit_count() == 1 else None


async def find(session: Session, of: Submission, note: Note) -> JobDetail | None:
    """Return the job of a note, where Batch says that it runs tasks of a job again.

    Raises:
        ServiceError: Batch refused a call.
    """
    ids = [note.job_id]
    if not note.job_id:  # whoever submitted it died before it could tell, or is about to
        ids = await session.backend.find(note.where.bundle, note.queue)
    for detail in (await session.backend.describe(ids)).values():
        before = detail.environment.get(contract.ENV_RETRY_OF, "").partition(":")[0]
        carried = detail.environment.get(contract.ENV_BUNDLE, "")
        if before == of.job_id and carried == note.where.url and not detail.is_command:
            return detail
    return None


async def retries_of(
    session: Session, submission: Submission, index: int | None = None
) -> list[str]:
    """Return the IDs of the jobs that run calls of a job again, as far as Batch knows them.

    Args:
        session: The event loop's session.
        submission: The job.
        index: Only those that run this task's; by default all.

    Raises:
        ServiceError: AWS refused a call.
    """
    store = session.stores.of(submission.where.bucket)
    noted = await read(store, submission)
    wanted = [note for note in noted if index is None or index in note.origin]
    found = await asyncio.gather(*(find(session, submission, note) for note in wanted))
    known = [detail for detail in found if detail is not None]
    oldest = datetime.min.replace(tzinfo=timezone.utc)
    known.sort(key=lambda detail: detail.created_at or oldest)
    return [detail.job_id for detail in known]


# --- running them -----------------------------------------------------------------------------


class Retried(NamedTuple):
    """A job that runs calls again.

    Attributes:
        submission: The job.
        tasks: For each of its tasks, which one it was, and what of it runs.
    """

    submission: Submission
    tasks: Sequence[Lacking]


async def submit(session: Session, plan: Plan, settings: Settings) -> list[Retried]:
    """Submit what a plan says, as one job; as several where a bundle would be too large.

    Cancelling the wait takes the request back; a job that is accepted anyway is terminated.

    Args:
        session: The event loop's session.
        plan: What is to run again.
        settings: The options of the new job, as `Plan.with_options` gives them.

    Raises:
        NothingToRetryError: It is nothing.
        IntegrityError: The bucket does not hold what was submitted.
        SettingsError: Something the options name does not exist, or they make no job.
        SubmissionError: Batch refused the job.
        ServiceError: AWS refused a call.
    """
    plan.refuse()
    async with session.copying:  # a thread waits for each
        with session.at_work():
            return await _submit(session, plan, settings)


async def _submit(session: Session, plan: Plan, settings: Settings) -> list[Retried]:
    left = deque(plan.tasks)
    done: list[Retried] = []
    store = session.stores.of(plan.submission.where.bucket)
    submitter = await session.submitter(settings)
    texts = None
    with contextlib.suppress(FarcallError, envelope.EnvelopeError):  # they are but shown
        texts = await bundles.texts_of(store, plan.submission)
    while left:
        copied = _Copied(session, plan, left, texts or [])
        told: list[Note] = []

        async def tell(where: Location, copied: _Copied = copied, told: Any = told) -> None:
            note = Note(where, settings.queue, copied.origin(), copied.skips())
            await write(store, plan.submission, note)
            told[:] = [note]

        again = Again(_job_id_of(plan), plan.detail.definition, plan.facts.get(SHARED) or {})
        try:
            submission = await submitter.submit_together(
                settings,
                plan.function,
                copied.tasks(),
                planned=tell,
                workflow=plan.workflow,
                facts=copied.facts,
                again=again,
            )
        except envelope.EnvelopeError as error:
            about = About(plan.submission.job_id, plan.submission.name)
            raise _differs(error, about, plan.submission) from error
        done.append(Retried(submission, tuple(copied.taken)))
        note = replace(told[0], where=submission.where, job_id=submission.job_id)
        with contextlib.suppress(FarcallError):  # it is found by its name then
            await write(store, plan.submission, note)
    return done


def _job_id_of(plan: Plan) -> str:
    """Return what the new job says it runs again: a task, where it is one alone."""
    if len(plan.tasks) == 1:
        return plan.submission.id_of(plan.tasks[0].number)
    return plan.submission.job_id


class _Copied:
    """Tasks on their way from a bundle into another; in a thread, while they are uploaded.

    Args:
        session: The event loop's session.
        plan: What is to run again.
        left: The tasks that are to be copied; those that are go from it.
        texts: What is shown of the arguments of each task of the old job, where that is known.

    Attributes:
        taken: Those that are copied.
        facts: What the new bundle says of them, true when it is sealed.
    """

    def __init__(
        self, session: Session, plan: Plan, left: deque[Lacking], texts: Sequence[str]
    ) -> None:
        self.taken: list[Lacking] = []
        where = plan.submission.where
        store = session.stores.of(where.bucket)
        self._bundle = Bundle(store, where, plan.submission.digest)
        self._origin = plan.origin
        self._left = left
        self._texts = texts
        self._loop = asyncio.get_running_loop()
        same = {name: plan.facts[name] for name in _SAME if name in plan.facts}
        self.facts: dict[str, Any] = {**same, RETRY_OF: plan.submission.job_id}
        self._functions: dict[int, Packed] = {}

    def origin(self) -> tuple[int, ...]:
        """Return the numbers that the tasks had."""
        return tuple(task.number for task in self.taken)

    def skips(self) -> dict[int, int]:
        """Return which of their calls are left out, by their new numbers."""
        return {number: task.skip for number, task in enumerate(self.taken) if task.skip}

    def tasks(self) -> Iterator[tuple[Packed, Packed]]:
        """Yield function and arguments of each task, as they were submitted."""
        ahead: deque[tuple[Lacking, Future[tuple[Part, Buffer]]]] = deque()
        coming = iter(list(self._left))
        characters = 0
        try:
            while True:
                while len(ahead) < _AHEAD and (task := next(coming, None)) is not None:
                    ahead.append((task, self._ask(self._task(task))))
                if not ahead:
                    return
                task, found = ahead.popleft()
                packed = self._packed(task.number, *found.result())
                self._left.popleft()
                self.taken.append(task)
                characters += task.skip.bit_length() // 4 + 1 if task.skip else 0
                if characters > _LARGEST_SKIPS:
                    raise FarcallError(
                        "too many calls of large chunks would be left out: the index of a bundle "
                        "has no room for that; retry some children alone, JOB:INDEX"
                    )
                self._note()
                yield packed
        finally:
            for _, each in ahead:
                each.cancel()

    def _note(self) -> None:
        """Say of the tasks what the new bundle is to say."""
        number, task = len(self.taken) - 1, self.taken[-1]
        self.facts.setdefault(ORIGIN, []).append(task.number)
        sizes = self.facts.setdefault(SIZES, {})
        if task.size is not None:
            sizes[str(number)] = task.size
        if task.skip:
            self.facts.setdefault(SKIP, {})[str(number)] = f"{task.skip:x}"

    def _ask(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def _task(self, task: Lacking) -> tuple[Part, Buffer]:
        entry, data = await self._bundle.entry(task.number)
        if len(data) < entry.length <= _LARGE_BYTES:
            data = await self._bundle.part(entry)
        return entry, data

    def _packed(self, number: int, entry: Part, data: Buffer) -> tuple[Packed, Packed]:
        function = self._functions.get(entry.function)
        if function is None:
            part, code = self._ask(self._bundle.function(entry.function)).result()
            part.check(code)
            function = self._functions[entry.function] = Packed([code], len(code), self._origin)
        if entry.length <= _LARGE_BYTES:
            entry.check(data)
            return function, self._arguments(number, [data], len(data))
        pieces = _Streamed(entry, lambda part: self._ask(self._bundle.part(part)))
        return function, self._arguments(number, pieces, entry.length)

    def _arguments(self, number: int, pieces: Iterable[Buffer], size: int) -> Packed:
        text = self._texts[number] if number < len(self._texts) else ""
        return Packed(pieces, size, self._origin, text=text)


class _Streamed:
    """The bytes of a large part of a bundle, read while they are sent; in a thread."""

    def __init__(self, part: Part, read: Callable[[Part], Future[Buffer]]) -> None:
        self._part = part
        self._read = read

    def __iter__(self) -> Iterator[Buffer]:
        """Yield them; the digest is looked at behind the last of them.

        Raises:
            IntegrityError: They are not what was submitted.
        """
        digest = hashlib.sha256()
        end = self._part.offset + self._part.length
        for at in range(self._part.offset, end, _STEP_BYTES):
            data = self._read(Part(at, min(_STEP_BYTES, end - at), b"")).result()
            digest.update(data)
            yield data
        if digest.digest() != self._part.sha256:
            raise envelope.IntegrityError("a part of the bundle differs from its index")
