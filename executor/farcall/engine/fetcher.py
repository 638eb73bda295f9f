"""Result fetcher: turns an outcome into results or an error, and deletes what was collected."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import re

# --- Delivered: the fetched outcome of a task ----------------------------------------------------
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any, TypeAlias

from farcall.backends.base import Backend, platform_of
from farcall.engine import attempt_reporter as attempts
from farcall.engine.attempt_reporter import of_tried
from farcall.engine.packer import WorkerThreads
from farcall.engine.tracked_job import Completion, Ended
from farcall.engine.tracker import Tracker
from farcall.model import failure_reasons
from farcall.model.errors import FarcallError, IntegrityError
from farcall.model.failure_reasons import About
from farcall.model.jobs import JobDetail
from farcall.model.output import Bytes
from farcall.model.submission import Submission
from farcall.model.timing import Timing
from farcall.payload import results
from farcall.payload.results import NodeEnd, Result
from farcall.payload.spill import FolderFor, NoRoomError, in_memory
from farcall.storage import chunks as logs
from farcall.storage import outcomes
from farcall.storage.chunks import Piece, Written
from farcall.storage.outcomes import Stored
from farcall.storage.rereads import until_intact
from farcall.storage.store import Arrived, Store, Stores
from farcall_runtime import envelope
from farcall_runtime.contract import STDOUT, STREAMS, OutcomeStatus
from farcall_runtime.envelope import Outcome


@dataclass(frozen=True)
class Usage:
    """Resources that a task used.

    Attributes:
        wall_s: Seconds from the container's start to the end of the function.
        cpu_s: CPU seconds of the task's process and of the child processes that it waited for.
        peak_memory_bytes: Largest resident size of one of these processes.
        memory_limit_bytes: The container's memory limit; None if it has none.
    """

    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_memory_bytes: int = 0
    memory_limit_bytes: int | None = None

    @classmethod
    def logged(cls, lines: Iterable[str]) -> Usage | None:
        """Return the usage in the last line of a task's log that has one.

        Only numbers of a plausible length are accepted, because a task can write any line.

        Args:
            lines: The log's last lines, the oldest first.
        """
        found = [match for match in map(_LOGGED.fullmatch, lines) if match]
        if not found:
            return None
        wall_s, cpu_s, memory_mib = map(float, found[-1].groups())
        return cls(wall_s, cpu_s, int(memory_mib * 2**20))


_LOGGED = re.compile(
    r"farcall: the task took ([0-9]{1,9}\.[0-9]{2}) s, ([0-9]{1,9}\.[0-9]{2}) s of CPU time and "
    r"([0-9]{1,9}\.[0-9]) MiB"
)
"""See `farcall_runtime.contract.usage_text`."""


@dataclass(frozen=True)
class Delivered:
    """Outcome of a task.

    Attributes:
        results: One result per call.
        stdout: The task's stdout, or its end; see ``is_whole``.
        stderr: The task's stderr, or its end.
        usage: Resources that the task used.
        attempt: Number of the last attempt, from 1; 0 if none started.
        deletable: Keys of objects to delete; empty if a call failed.
        output: Keys of stored output that is deleted when no caller can request it any more; empty
            if a call failed.
        is_whole: Whether ``stdout`` and ``stderr`` are complete.
        written: Where the output is stored, if known.
        meta: Metadata of the outcome; None if there is none.
        others: For a multi-node task, the outcomes of the other nodes by index; the remaining
            attributes are the main node's. Nodes without an outcome are missing.
    """

    results: list[Result] = field(repr=False)
    stdout: Bytes = field(default=b"", repr=False)
    stderr: Bytes = field(default=b"", repr=False)
    usage: Usage = Usage()
    attempt: int = 0
    deletable: list[str] = field(default_factory=list, repr=False)
    output: list[str] = field(default_factory=list, repr=False)
    is_whole: bool = True
    written: Written | None = field(default=None, repr=False)
    meta: dict[str, Any] | None = field(default=None, repr=False)
    others: Mapping[int, Delivered] = field(default_factory=dict, repr=False)

    @property
    def all_deletable(self) -> list[str]:
        """Keys of all objects, if no caller can request the output later."""
        return [*self.deletable, *self.output] if self.output else self.deletable

    def elsewhere(self) -> Written | None:
        """Return where the output is; None if all of it is local, or there is no outcome."""
        return None if self.is_whole or self.meta is None else self.written

    def text(self, stream: str) -> str:
        """Return a stream, as far as it was fetched, decoded as UTF-8."""
        whole = self.stdout if stream == STDOUT else self.stderr
        return whole.decode(errors="replace")

    def with_output(self, stdout: Bytes, stderr: Bytes) -> Delivered:
        """Return a copy with the complete output, split among the results of the calls."""
        job = About("", "", stdout=stdout, stderr=stderr)
        if self.meta is not None and "results" in self.meta:
            found = results.shared(self.results, self.meta, job)
        else:
            found = [each._replace(stdout=stdout, stderr=stderr) for each in self.results]
        return replace(self, results=found, stdout=stdout, stderr=stderr, is_whole=True)


async def fetch_written(
    store: Store, submission: Submission, index: int, key: str, threads: Executor | None = None
) -> Written | None:
    """Return the output that an outcome describes; None if the outcome does not exist.

    Raises:
        IntegrityError: The outcome is not what the container wrote.
        ServiceError: S3 refused a request.
    """
    try:
        found = await outcomes.fetch(store, submission, key, threads=threads)
    except envelope.EnvelopeError as error:
        about = About(submission.id_of(index), submission.name)
        raise failure_reasons.unusable(error).error(about) from error
    return None if found is None else Written.of(submission, index, found.outcome, found.at)


# --- Job failures: facts that an error has in addition to the failure reason -----------------


_LAST_LINES = 200


def about_job(backend: Backend, job: About, detail: JobDetail | None, attempts: int) -> About:
    """Add the platform's report of a job's end to the facts of an error.

    Args:
        backend: Platform that ran the job.
        job: ID and name of the job.
        detail: The platform's description of the job, if known.
        attempts: Number of attempts.
    """
    reason, platform_text, log_url = "", "", None
    if detail is not None:
        # For a job that continues according to the backend, these texts are not about its end.
        if detail.status.is_final:
            reason, platform_text = detail.reason, detail.platform_reason
        log_url = backend.links(detail).get("log")
    platform = platform_of(backend)
    return About(
        job.job_id, job.name, reason, platform_text, attempts, log_url=log_url, platform=platform
    )


async def last_lines(backend: Backend, detail: JobDetail) -> bytes:
    """Return the end of the platform's log; empty if the log cannot be read."""
    try:
        found = await backend.log(detail.log_group, detail.log_stream).last(_LAST_LINES)
    except FarcallError:
        return b""  # a missing log must not hide why the job failed
    return "".join(f"{line.text}\n" for line in found).encode()


async def of_command(backend: Backend, timing: Timing, detail: JobDetail) -> FarcallError:
    """Return the error of a failed command job, with the main node's last lines.

    Args:
        backend: Platform that ran the job.
        timing: Delay after which the log is complete.
        detail: The finished job.
    """
    if detail.log_stream and detail.stopped_at is not None:
        settled = detail.stopped_at + timedelta(seconds=timing.log_settle_s)
        left_s = (settled - datetime.now(timezone.utc)).total_seconds()
        await asyncio.sleep(min(left_s, timing.log_settle_s))
    earlier = [of_tried(detail.of_attempt(tried)) for tried in detail.tried[:-1]]
    job = about_job(backend, About(detail.job_id, detail.name), detail, detail.attempts)
    job = job.of(await last_lines(backend, detail), b"")._replace(earlier=tuple(earlier))
    return detail.failure_reason().error(job)


_PARALLEL = 32
_MANY = 100  # tasks of one job

Reader: TypeAlias = "Callable[[dict[str, Any], envelope.Buffer, About], list[Result]]"
"""Turns an outcome's metadata and value into results; errors get the job's facts."""

Room: TypeAlias = Callable[[int], Awaitable[None]]
"""Waits until there is room for a number of further bytes."""


async def no_bound(_more_bytes: int) -> None:
    """Allow all fetches at once."""


class _TakenError(Exception):
    """A listed object no longer exists."""


@dataclass(slots=True)
class _Task:
    """A finished task, and the limits of its fetch; see `Fetcher.deliver`."""

    store: Store
    submission: Submission
    index: int
    calls: int
    room: Room
    output: Output
    platform: str

    @property
    def about(self) -> About:
        submission, index = self.submission, self.index
        name = submission.name_of(index) if submission.is_other_node(index) else submission.name
        return About(submission.id_of(index), name, platform=self.platform)

    def fail(self, error: FarcallError) -> Delivered:
        """Return an outcome in which each call has this error."""
        return Delivered([Result(error=error)] * self.calls)


class Output(enum.Enum):
    """Part of a task's output that is fetched in addition to the part in its outcome."""

    NONE = enum.auto()
    """No output; for a failed task the end, for the error."""
    SMALL = enum.auto()
    """Complete output if it is small; otherwise the same as `NONE`."""
    WHOLE = enum.auto()


class Fetcher:
    """Fetches outcomes.

    Args:
        backend: Platform that runs the jobs, for its own log.
        stores: Buckets.
        tracker: Describes jobs.
        threads: Threads in which outcomes are verified and unpickled.
    """

    def __init__(
        self,
        backend: Backend,
        stores: Stores,
        tracker: Tracker,
        threads: WorkerThreads,
    ) -> None:
        self._backend = backend
        self._stores = stores
        self._tracker = tracker
        self._threads = threads
        # Fetches share connections: one for each would cost a TLS handshake for each.
        self._places = asyncio.Semaphore(_PARALLEL)

    async def deliver(
        self,
        submission: Submission,
        index: int,
        arrival: Completion,
        calls: int = 1,
        *,
        read: Reader = results.read,
        folder_for: FolderFor = in_memory,
        room: Room = no_bound,
        output: Output = Output.WHOLE,
    ) -> Delivered:
        """Fetch the outcome of a task. Its objects stay in the bucket, for the `Cleaner`.

        Args:
            submission: The task's job.
            index: Index of the task.
            arrival: The tracker's report of the end.
            calls: Number of calls in the task.
            read: Turns an outcome into results.
            folder_for: Returns the folder for a value that is a separate object, by its size.
            room: Waits before anything except the outcome is fetched.
            output: Part of the task's output that is fetched.

        Returns:
            At least as many results as there are calls.

        Raises:
            ServiceError: S3 refused a request.
        """
        store = self._stores.of(submission.where.bucket)
        task = _Task(store, submission, index, calls, room, output, platform_of(self._backend))
        with self._threads.held():  # a session that is closed does not wait for this
            return await _failing(task, self._deliver(task, arrival, read, folder_for))

    async def _deliver(
        self, task: _Task, arrival: Completion, read: Reader, folder_for: FolderFor
    ) -> Delivered:
        if isinstance(arrival, Ended):
            return await self._explain(task, arrival, read, folder_for)
        outcome = await self._open(task, arrival)
        extra_bytes = _bytes_outside(outcome, task.output)
        if extra_bytes:
            await task.room(extra_bytes)
        return await self._unpack(task, outcome, read, folder_for)

    async def written(self, submission: Submission, index: int) -> Written | None:
        """Return the stored output of a finished task; the outcome stays in the bucket.

        Returns:
            None if there is no outcome yet, or no longer.

        Raises:
            IntegrityError: The outcome is not what the container wrote.
            ServiceError: S3 refused a request.
        """
        store, key = self._stores.of(submission.where.bucket), submission.where.outcome_key(index)
        return await fetch_written(store, submission, index, key, self._threads.executor)

    # --- with an outcome ----------------------------------------------------------------------

    async def _open(self, task: _Task, arrived: Arrived) -> Outcome:
        key = task.submission.where.outcome_key(task.index)
        async with self._places:
            found = await outcomes.fetch(
                task.store, task.submission, key, size=arrived.size, threads=self._threads.executor
            )
        if found is None:
            raise _TakenError
        return found.outcome

    async def _unpack(
        self, task: _Task, outcome: Outcome, read: Reader, folder_for: FolderFor
    ) -> Delivered:
        """Read the outcome of a task; for a multi-node task, this is the main node's."""
        main = await self._unpack_one(task, outcome, read, folder_for)
        if task.submission.nodes == 1:
            return main
        return await self._with_others(task, main, read, folder_for, main_decides=False)

    async def _with_others(
        self,
        task: _Task,
        main: Delivered,
        read: Reader,
        folder_for: FolderFor,
        *,
        main_decides: bool,
    ) -> Delivered:
        indexes = range(1, task.submission.nodes)
        fetched = await asyncio.gather(
            *(self._fetch_node(task, index, main.attempt) for index in indexes)
        )
        found = dict(zip(indexes, fetched, strict=True))
        there = [one for one in fetched if isinstance(one, outcomes.Stored)]
        if there:
            more = sum(one.size + _bytes_outside(one.outcome, task.output) for one in there)
            await task.room(more)
        read_ones = await asyncio.gather(
            *(self._read_node(task, i, found[i], read, folder_for) for i in indexes)
        )
        others = dict(zip(indexes, read_ones, strict=True))
        failed = any(result.error is not None for result in main.results)
        if failed or (main.meta is not None and not results.is_success(main.meta)):
            others = {i: each for i, each in others.items() if found[i] is not None}
        joined = results.join_nodes(
            NodeEnd(0, main.results, main.meta),
            [NodeEnd(index, each.results, each.meta) for index, each in others.items()],
            task.submission.nodes,
            _incomplete(task.about, main),
            main_decides=main_decides,
        )
        well = all(result.error is None for result in joined)
        each_of = [main, *others.values()]
        return replace(
            main,
            results=joined,
            deletable=[key for each in each_of for key in each.deletable] if well else [],
            output=[key for each in each_of for key in each.output] if well else [],
            others={index: replace(each, results=[]) for index, each in others.items()},
        )

    async def _fetch_node(
        self, task: _Task, index: int, attempt: int
    ) -> Stored | envelope.EnvelopeError | None:
        """Return another node's outcome, the error that makes it unusable, or None."""
        key = task.submission.where.node_key(max(1, attempt), index)
        try:
            async with self._places:
                return await outcomes.fetch(
                    task.store, task.submission, key, threads=self._threads.executor
                )
        except envelope.EnvelopeError as error:
            return error

    async def _read_node(
        self,
        task: _Task,
        index: int,
        found: Stored | envelope.EnvelopeError | None,
        read: Reader,
        folder_for: FolderFor,
    ) -> Delivered:
        node = replace(task, index=index, room=no_bound)
        if isinstance(found, envelope.EnvelopeError):
            return node.fail(failure_reasons.unusable(found).error(node.about))
        if found is None:
            return node.fail(failure_reasons.taken(node.about))
        return await _failing(node, self._unpack_one(node, found.outcome, read, folder_for))

    async def _unpack_one(
        self, task: _Task, outcome: Outcome, read: Reader, folder_for: FolderFor
    ) -> Delivered:
        store, submission, index = task.store, task.submission, task.index
        meta = outcome.meta
        attempt = int(meta["attempt"])
        written = Written.of(submission, index, outcome)
        out, err = await _read_output(task, written, failed=not results.is_success(meta))
        known = Delivered(
            [],
            out.data,
            err.data,
            Usage(**meta["usage"]),
            attempt,
            is_whole=not (out.left_out or err.left_out),
            written=written,
            meta=meta,
        )
        try:
            value = await self._fetch_value(store, submission, index, outcome, folder_for)
        except NoRoomError as error:  # this does not affect the task's output
            return replace(known, results=task.fail(error).results)
        job = await self._complete(task, meta, out, err)
        found = await self._threads.run(read, meta, value, job)
        found = results.complete(found, meta, job, task.calls)
        well = all(result.error is None for result in found)
        deletable = await outcomes.deletable_keys(store, submission, index, meta) if well else []
        return replace(
            known, results=found, deletable=deletable, output=written.keys() if well else []
        )

    async def _fetch_value(
        self,
        store: Store,
        submission: Submission,
        index: int,
        outcome: Outcome,
        folder_for: FolderFor,
    ) -> envelope.Buffer:
        value = outcome.meta.get("value")
        if value is None:
            return outcome.value
        key = partial(submission.where.value_key, index, int(outcome.meta["attempt"]))
        size = value["size"]

        async def read() -> envelope.Buffer:
            found = await store.get_large(key, size, folder_for(size))
            if found is None:
                raise _TakenError
            data, digest = found
            if digest != value["sha256"]:
                place = key(0).rpartition("/")[0]
                raise envelope.IntegrityError(
                    f"s3://{store.bucket}/{place} differs from the task's stored result"
                )
            return data

        return await until_intact(read)

    async def _complete(self, task: _Task, meta: dict[str, Any], out: Piece, err: Piece) -> About:
        """Add the output to the job's facts, and for an error also Batch's description.

        If many calls raised, Batch is not called: that would take longer than the calls, and only
        adds the location of the log.
        """
        job = task.about._replace(name=task.submission.name_of(task.index))
        if results.is_success(meta):
            return job.of(out.data, err.data, (out.left_out, err.left_out))
        detail = None
        if meta["status"] != OutcomeStatus.DONE or task.submission.size <= _MANY:
            with contextlib.suppress(FarcallError):  # the error itself matters more
                detail = await self._tracker.detail(job.job_id)
        about = self._with(job, detail, out, err, int(meta["attempt"]))
        return await self._with_earlier(task, about, detail)

    # --- without one --------------------------------------------------------------------------

    async def _explain(
        self, task: _Task, ended: Ended, read: Reader, folder_for: FolderFor
    ) -> Delivered:
        store, submission, index = task.store, task.submission, task.index
        detail = ended.detail
        if ended.error is not None:
            return task.fail(ended.error)
        if detail is None:
            return task.fail(failure_reasons.lost(task.about))
        kept = await self._last_attempt(task, detail)
        if kept is not None and attempts.is_the_end(kept.meta, detail):
            return await self._unpack(task, kept, read, folder_for)
        usage, written = Usage(), None
        if kept is not None:
            written = Written.of(submission, index, kept)
            usage = Usage(**kept.meta["usage"])
        else:
            chunks = logs.Chunks(store, submission, index)
            written = await chunks.written(max(1, detail.attempts))  # as in the error
            await task.room(_bytes_written(written.records, task.output, failed=True))
        out, err = await _read_output(task, written, failed=True)
        if not out.data and not err.data:
            written = None
            log = Piece(await last_lines(self._backend, detail))
            # Output before the runtime starts is only on stderr.
            out, err = (out, log) if detail.runtime else (log, err)
        job = self._with(task.about, detail, out, err, detail.attempts)
        job = await self._with_earlier(task, job, detail)
        why = detail.failure_reason()
        found = [Result(None, why.error(job), out.data, err.data)] * task.calls
        if kept is not None and "results" in kept.meta and task.calls > 1:
            value = await self._fetch_value(store, submission, index, kept, in_memory)
            found = await self._threads.run(results.read, kept.meta, value, job, why)
            found = results.complete(found, kept.meta, job, task.calls, why)
        main = Delivered(
            found,
            out.data,
            err.data,
            usage,
            detail.attempts,
            is_whole=not (out.left_out or err.left_out),
            written=written,
            meta=kept.meta if kept is not None else None,
        )
        if submission.nodes == 1:
            return main
        return await self._with_others(task, main, read, folder_for, main_decides=True)

    async def _last_attempt(self, task: _Task, detail: JobDetail) -> Outcome | None:
        """Return the outcome that the last attempt stored when it was stopped."""
        key = task.submission.attempt_key(task.index, max(1, detail.attempts))
        found = await outcomes.fetch(
            task.store, task.submission, key, threads=self._threads.executor
        )
        if found is None:
            return None
        await task.room(found.size + _bytes_outside(found.outcome, task.output))
        return found.outcome

    def _with(
        self, job: About, detail: JobDetail | None, out: Piece, err: Piece, attempts: int
    ) -> About:
        about = about_job(self._backend, job, detail, attempts)
        return about.of(out.data, err.data, (out.left_out, err.left_out))

    async def _with_earlier(self, task: _Task, job: About, detail: JobDetail | None) -> About:
        numbers = list(range(1, job.attempts))
        if not numbers:
            return job
        try:
            async with self._places:
                earlier = await attempts.explain(
                    task.store, task.submission, task.index, detail, numbers
                )
        except FarcallError:  # the error itself matters more
            return job
        return job._replace(earlier=tuple(earlier))


async def _failing(task: _Task, reading: Awaitable[Delivered]) -> Delivered:
    """Read an outcome; if its objects are missing or changed, return that error for each call."""
    try:
        return await reading
    except _TakenError:
        return task.fail(failure_reasons.taken(task.about))
    except envelope.EnvelopeError as error:
        return task.fail(failure_reasons.unusable(error).error(task.about))
    except IntegrityError as error:  # a chunk of its output
        return task.fail(error)


def _incomplete(about: About, main: Delivered) -> BaseException | None:
    """Return the first error that the main node reports for an unfinished call."""
    first = next((each.error for each in main.results if each.error is not None), None)
    if first is not None or main.meta is None or results.is_success(main.meta):
        return first
    return results.of_process(main.meta).error(about.of(main.stdout, main.stderr))


async def _read_output(task: _Task, written: Written, *, failed: bool) -> tuple[Piece, Piece]:
    """Return the wanted part of a task's output; for a failed task at least the end."""
    small = task.output is Output.SMALL and written.is_small
    if small or task.output is Output.WHOLE:
        return await written.whole(task.store)
    return await written.end(task.store) if failed else written.here()


def _bytes_outside(outcome: Outcome, output: Output) -> int:
    """Return the maximum number of bytes that are fetched in addition to the outcome."""
    meta = outcome.meta
    written = _bytes_written(meta, output, failed=not results.is_success(meta))
    return written + (int(meta["value"]["size"]) if "value" in meta else 0)


def _bytes_written(records: Mapping[str, Any], output: Output, *, failed: bool) -> int:
    """Return the maximum number of bytes of output that are fetched."""
    extra_bytes = [int(records[stream]["stored"]) for stream in STREAMS]
    if output is not Output.WHOLE:
        most = logs.FETCHED_END_BYTES if failed else logs.SMALL_BYTES
        extra_bytes = [min(stored, most) for stored in extra_bytes]
    return sum(extra_bytes)
