"""Result fetcher: turns an outcome into results or an error."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from farcall.backends.base import Backend, platform_of
from farcall.engine import attempt_reporter as attempts
from farcall.engine.delivered import Delivered, Output, Usage, Wanted, fetch_written
from farcall.engine.failures import about_job, last_lines
from farcall.engine.tracked_job import Completion, Ended
from farcall.engine.tracker import Tracker
from farcall.engine.worker_threads import WorkerThreads
from farcall.model import failure_reasons
from farcall.model.errors import FarcallError, IntegrityError
from farcall.model.failure_reasons import About
from farcall.model.jobs import JobDetail
from farcall.model.submission import Submission
from farcall.payload import results
from farcall.payload.results import NodeEnd, Result
from farcall.payload.spill import NoRoomError, in_memory
from farcall.storage import chunks as logs
from farcall.storage import outcomes
from farcall.storage.chunks import Piece, Written
from farcall.storage.outcomes import Stored
from farcall.storage.rereads import until_intact
from farcall.storage.store import Arrived, Store, Stores
from farcall_runtime import envelope
from farcall_runtime.contract import STREAMS, OutcomeStatus
from farcall_runtime.envelope import Outcome

_PARALLEL = 32
_MANY = 100  # tasks of one job


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
    wanted: Wanted
    room: Room
    platform: str

    @property
    def about(self) -> About:
        submission, index = self.submission, self.index
        name = submission.name_of(index) if submission.is_other_node(index) else submission.name
        return About(submission.id_of(index), name, platform=self.platform)

    def fail(self, error: FarcallError) -> Delivered:
        """Return an outcome in which each call has this error."""
        return Delivered([Result(error=error)] * self.wanted.calls)


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
        wanted: Wanted,
        room: Room = no_bound,
    ) -> Delivered:
        """Fetch the outcome of a task. Its objects stay in the bucket.

        Args:
            submission: The task's job.
            index: Index of the task.
            arrival: The tracker's report of the end.
            wanted: Parts of the outcome to fetch.
            room: Waits before anything except the outcome is fetched.

        Returns:
            At least as many results as there are calls.

        Raises:
            ServiceError: S3 refused a request.
        """
        store = self._stores.of(submission.where.bucket)
        task = _Task(store, submission, index, wanted, room, platform_of(self._backend))
        with self._threads.held():  # a session that is closed does not wait for this
            return await _failing(task, self._deliver(task, arrival))

    async def _deliver(self, task: _Task, arrival: Completion) -> Delivered:
        if isinstance(arrival, Ended):
            return await self._explain(task, arrival)
        outcome = await self._open(task, arrival)
        extra_bytes = _bytes_outside(outcome, task.wanted.output)
        if extra_bytes:
            await task.room(extra_bytes)
        return await self._unpack(task, outcome)

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
            stored = await outcomes.fetch(
                task.store, task.submission, key, size=arrived.size, threads=self._threads.executor
            )
        if stored is None:
            raise _TakenError
        return stored.outcome

    async def _unpack(self, task: _Task, outcome: Outcome) -> Delivered:
        """Read the outcome of a task; for a multi-node task, this is the main node's."""
        main = await self._unpack_one(task, outcome)
        if task.submission.nodes == 1:
            return main
        return await self._with_others(task, main, main_decides=False)

    async def _with_others(
        self,
        task: _Task,
        main: Delivered,
        *,
        main_decides: bool,
    ) -> Delivered:
        indexes = range(1, task.submission.nodes)
        fetched = await asyncio.gather(
            *(self._fetch_node(task, index, main.attempt) for index in indexes)
        )
        stored = dict(zip(indexes, fetched, strict=True))
        there = [one for one in fetched if isinstance(one, outcomes.Stored)]
        if there:
            more = sum(one.size + _bytes_outside(one.outcome, task.wanted.output) for one in there)
            await task.room(more)
        read_ones = await asyncio.gather(*(self._read_node(task, i, stored[i]) for i in indexes))
        others = dict(zip(indexes, read_ones, strict=True))
        failed = any(result.error is not None for result in main.results)
        if failed or (main.meta is not None and not results.is_success(main.meta)):
            others = {i: each for i, each in others.items() if stored[i] is not None}
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
        stored: Stored | envelope.EnvelopeError | None,
    ) -> Delivered:
        node = replace(task, index=index, room=no_bound)
        if isinstance(stored, envelope.EnvelopeError):
            return node.fail(failure_reasons.unusable(stored).error(node.about))
        if stored is None:
            return node.fail(failure_reasons.taken(node.about))
        return await _failing(node, self._unpack_one(node, stored.outcome))

    async def _unpack_one(self, task: _Task, outcome: Outcome) -> Delivered:
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
            value = await self._fetch_value(task, outcome)
        except NoRoomError as error:  # this does not affect the task's output
            return replace(known, results=task.fail(error).results)
        job = await self._complete(task, meta, out, err)
        results_read = await self._threads.run(task.wanted.read, meta, value, job)
        results_read = results.complete(results_read, meta, job, task.wanted.calls)
        well = all(result.error is None for result in results_read)
        deletable = await outcomes.deletable_keys(store, submission, index, meta) if well else []
        return replace(
            known, results=results_read, deletable=deletable, output=written.keys() if well else []
        )

    async def _fetch_value(self, task: _Task, outcome: Outcome) -> envelope.Buffer:
        value = outcome.meta.get("value")
        if value is None:
            return outcome.value
        key = partial(task.submission.where.value_key, task.index, int(outcome.meta["attempt"]))
        size, folder_for = value["size"], task.wanted.folder_for or in_memory

        async def read() -> envelope.Buffer:
            stored = await task.store.get_large(key, size, folder_for(size))
            if stored is None:
                raise _TakenError
            data, digest = stored
            if digest != value["sha256"]:
                place = key(0).rpartition("/")[0]
                raise envelope.IntegrityError(
                    f"s3://{task.store.bucket}/{place} differs from the task's stored result"
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

    async def _explain(self, task: _Task, ended: Ended) -> Delivered:
        store, submission, index = task.store, task.submission, task.index
        detail = ended.detail
        if ended.error is not None:
            return task.fail(ended.error)
        if detail is None:
            return task.fail(failure_reasons.lost(task.about))
        kept = await self._last_attempt(task, detail)
        if kept is not None and attempts.is_the_end(kept.meta, detail):
            return await self._unpack(task, kept)
        usage, written = Usage(), None
        if kept is not None:
            written = Written.of(submission, index, kept)
            usage = Usage(**kept.meta["usage"])
        else:
            chunks = logs.Chunks(store, submission, index)
            written = await chunks.written(max(1, detail.attempts))  # as in the error
            await task.room(_bytes_written(written.records, task.wanted.output, failed=True))
        out, err = await _read_output(task, written, failed=True)
        if not out.data and not err.data:
            written = None
            log = Piece(await last_lines(self._backend, detail))
            # Output before the runtime starts is only on stderr.
            out, err = (out, log) if detail.runtime else (log, err)
        job = self._with(task.about, detail, out, err, detail.attempts)
        job = await self._with_earlier(task, job, detail)
        why = detail.failure_reason()
        call_results = [Result(None, why.error(job), out.data, err.data)] * task.wanted.calls
        if kept is not None and "results" in kept.meta and task.wanted.calls > 1:
            value = await self._fetch_value(task, kept)
            call_results = await self._threads.run(results.read, kept.meta, value, job, why)
            call_results = results.complete(call_results, kept.meta, job, task.wanted.calls, why)
        main = Delivered(
            call_results,
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
        return await self._with_others(task, main, main_decides=True)

    async def _last_attempt(self, task: _Task, detail: JobDetail) -> Outcome | None:
        """Return the outcome that the last attempt stored when it was stopped."""
        key = task.submission.attempt_key(task.index, max(1, detail.attempts))
        stored = await outcomes.fetch(
            task.store, task.submission, key, threads=self._threads.executor
        )
        if stored is None:
            return None
        await task.room(stored.size + _bytes_outside(stored.outcome, task.wanted.output))
        return stored.outcome

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
    small = task.wanted.output is Output.SMALL and written.is_small
    if small or task.wanted.output is Output.WHOLE:
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
