"""Retry reporter: logs each failed attempt that Batch follows with another.

Batch describes the attempts of a single job. Array tasks would need one request each, so the
bucket is listed instead: a container stores the outcome of such an attempt under ``attempts/``. If
its instance was lost, Batch's reason is logged. These messages are best-effort.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any

from farcall.backends.base import Jobs
from farcall.engine.tracked_job import TrackedJob
from farcall.model import clock, errors, exit_codes, failure_reasons
from farcall.model.failure_reasons import About, FailureReason
from farcall.model.jobs import JobDetail
from farcall.model.submission import Submission
from farcall.payload import results
from farcall.storage import outcomes
from farcall.storage.store import Store, Stores, number_in
from farcall_runtime import envelope
from farcall_runtime.contract import CallStatus, ExitCode, Location, OutcomeStatus

_log = logging.getLogger("farcall")

_LINES = 5
"""Maximum attempts logged individually per minute; further ones are only counted."""

_WINDOW_S = 60.0
_PAGE = 1000
_PAGE_S = 1.0
"""Minimum seconds between two listings of a bundle, per page of the listing."""

_LARGEST_BYTES = 1024 * 1024
"""Maximum size of an attempt's outcome to read; larger ones are mostly output."""


class AttemptReporter:
    """Reporter of failed attempts whose tasks continue."""

    def __init__(self, backend: Jobs, stores: Stores) -> None:
        self._backend = backend
        self._stores = stores
        self._failed_attempts: deque[tuple[TrackedJob, int, JobDetail, int]] = deque()
        self._unpolled: dict[TrackedJob, None] = {}
        self._rests: dict[TrackedJob, float] = {}
        self._task: asyncio.Task[None] | None = None
        self._lines_left = _LINES
        self._counted = 0
        self._window: asyncio.TimerHandle | None = None

    def note(self, job: TrackedJob, index: int, detail: JobDetail) -> None:
        """Record Batch's description of a task.

        Args:
            job: The task's job.
            index: Index of the task.
            detail: Description of a single job or an array task.
        """
        known = job.tried.get(index, 0)
        if index in job.waiting and detail.attempts > known and _goes_on(detail):
            job.tried[index] = detail.attempts
            self._failed_attempts.append((job, index, detail, known + 1))
            self._start()

    def add(self, job: TrackedJob) -> None:
        """List the outcomes of array tasks' failed attempts, unless listed recently."""
        if clock.now() >= self._rests.get(job, 0.0):
            self._unpolled[job] = None
            self._start()

    def forget(self, job: TrackedJob) -> None:
        """Stop reporting a job."""
        self._unpolled.pop(job, None)
        self._rests.pop(job, None)

    async def close(self) -> None:
        """Stop reporting, and log how many attempts were not logged individually."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._window is not None:
            self._window.cancel()
            self._sum_up()

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while self._failed_attempts or self._unpolled:
            try:
                if self._failed_attempts:
                    await self._report(*self._failed_attempts.popleft())
                else:
                    job = next(iter(self._unpolled))
                    del self._unpolled[job]
                    await self._poll(job)
            except Exception as error:  # the tasks themselves continue after any error
                _log.debug("failed attempts are not reported: %r", error)

    async def _report(self, job: TrackedJob, index: int, detail: JobDetail, first: int) -> None:
        submission = job.job
        for number in range(first, detail.attempts + 1):
            if index not in job.waiting:  # the task has finished meanwhile
                return
            if not self._may_log():
                self._count(1)
                continue
            if isinstance(submission, Submission):
                store = self._stores.of(submission.where.bucket)
                (how,) = await explain(store, submission, index, detail, [number])
            else:
                how = of_tried(detail.of_attempt(detail.tried[number - 1]))
            text = "job %s (%s): attempt %d of %d failed and is retried: %s"
            _log.warning(
                text,
                submission.id_of(index),
                submission.name,
                number,
                detail.attempts_allowed,
                how,
            )

    async def _poll(self, job: TrackedJob) -> None:
        new = await self._find_new(job)
        if not new:
            return
        # Only Batch knows whether another attempt follows: a cancelled task stores the same
        # object.
        id_of = job.job.id_of
        requested = list(new)[: max(1, self._lines_left)]
        details = await self._backend.describe(map(id_of, requested))
        follow = False
        for index in requested:
            number = new.pop(index)
            detail = details.get(id_of(index))
            if detail is None or (_goes_on(detail) and detail.attempts < number):
                continue  # Batch will report its end soon
            follow = follow or _goes_on(detail)
            self.note(job, index, detail)
            job.tried[index] = max(number, job.tried.get(index, 0))
        if follow:
            for index, number in new.items():
                self._count(number - job.tried.get(index, 0))
                job.tried[index] = number

    async def _find_new(self, job: TrackedJob) -> dict[int, int]:
        """Return each task's latest attempt with a new outcome, by task index."""
        where = job.submission.where
        listed = await self._stores.of(where.bucket).list_keys(where.attempts_prefix)
        if job.waiting:  # it may have finished meanwhile
            self._rests[job] = clock.now() + (1 + len(listed) // _PAGE) * _PAGE_S
        new: dict[int, int] = {}
        for index, number in (_place(where, key) for key, _ in listed):
            known = max(job.tried.get(index, 0), new.get(index, 0))
            if index in job.waiting and number > known:
                new[index] = number
        return new

    def _may_log(self) -> bool:
        self._open_window()
        self._lines_left -= 1
        return self._lines_left >= 0

    def _count(self, number: int) -> None:
        self._open_window()
        self._counted += number

    def _open_window(self) -> None:
        if self._window is None:
            loop = asyncio.get_running_loop()
            self._window = loop.call_later(_WINDOW_S, self._sum_up)

    def _sum_up(self) -> None:
        if self._counted:
            _log.warning(
                "%d more attempts failed and were retried; a task's error describes its "
                "earlier attempts",
                self._counted,
            )
        self._window, self._lines_left, self._counted = None, _LINES, 0


async def explain(
    store: Store,
    submission: Submission,
    index: int,
    detail: JobDetail | None,
    numbers: list[int],
) -> list[str]:
    """Describe how attempts ended, one line each: the error's class and text.

    Args:
        store: The bucket.
        submission: The job.
        index: Index of the task.
        detail: Batch's description of the task, or None.
        numbers: Numbers of the attempts, from 1.

    Raises:
        ServiceError: S3 refused a request.
    """
    where = submission.where
    listed: list[tuple[str, int]] = []
    if not submission.is_other_node(index):  # the backend's reason is enough for other nodes
        listed = await store.list_keys(f"{where.attempts_prefix}{index}/")
    sizes = {_place(where, key): size for key, size in listed}
    lines = []
    for number in numbers:
        tried = detail.tried if detail is not None else ()
        described = None
        if detail is not None and number <= len(tried):
            described = detail.of_attempt(tried[number - 1])
        size = sizes.get((index, number))
        line = ""
        if size is not None and size <= _LARGEST_BYTES:
            line = await _read(store, submission, where.attempt_key(index, number), described)
        lines.append(line or of_tried(described))
    return lines


async def _read(
    store: Store, submission: Submission, key: str, described: JobDetail | None
) -> str:
    """Return the description of an attempt's outcome, without unpickling."""
    try:
        stored = await outcomes.fetch(store, submission, key)
    except envelope.EnvelopeError as error:
        return f"its stored result is not what the job wrote ({error}), and was not read"
    return "" if stored is None else of_attempt(stored.outcome.meta, described)


def _goes_on(detail: JobDetail) -> bool:
    """Return whether Batch follows a finished attempt with another."""
    withdrawn = detail.is_cancelled or detail.is_terminated
    return not detail.status.is_final and not withdrawn


def _place(where: Location, key: str) -> tuple[int, int]:
    """Return the task index and attempt number in a key of any origin."""
    index, _, number = key.removeprefix(where.attempts_prefix).partition("/")
    task, attempt = number_in(index), number_in(number)
    return (-1, 0) if task is None or attempt is None else (task, attempt)


def is_the_end(meta: dict[str, Any], detail: JobDetail) -> bool:
    """Return whether the last attempt's own outcome explains the job's failure.

    The attempt stored it because another attempt could follow, but Batch started none. If the
    attempt was terminated, or the job was cancelled after it, the job has another failure reason.

    Args:
        meta: The description of the attempt's outcome.
        detail: Batch's description of the job.
    """
    if meta["status"] == OutcomeStatus.TERMINATED:
        return False
    return detail.failure_reason().kind not in (errors.JobCancelledError, errors.JobStuckError)


def of_attempt(meta: dict[str, Any], described: JobDetail | None) -> str:
    """Return one line on how a retried attempt ended.

    Args:
        meta: The description of the attempt's outcome.
        described: The backend's description of the attempt, if known; see `JobDetail.of_attempt`.
    """
    status = meta["status"]
    if status == OutcomeStatus.DONE:
        failed = (r for r in meta["results"] if r["status"] != CallStatus.RETURNED)
        record = next(failed, None)
        if record is None or not record.get("chain"):
            return of_tried(described)
        first = record["chain"][0]
        return failure_reasons.in_a_line(first["type"], str(first["message"]))
    if status == OutcomeStatus.TERMINATED:
        if described is None:
            return _in_a_line(exit_codes.EXITS[ExitCode.TERMINATED])
        return of_tried(described)
    is_refusal = status == OutcomeStatus.REFUSED
    reason = exit_codes.refused(meta, About("", "")) if is_refusal else results.of_process(meta)
    return _in_a_line(reason)


def of_tried(described: JobDetail | None) -> str:
    """Return one line on an attempt without an outcome, from the backend's report."""
    if described is None:
        return "no stored result"
    return _in_a_line(
        described.failure_reason(),
        f", {described.platform} reports {described.platform_reason!r}"
        if described.platform_reason
        else "",
    )


def _in_a_line(reason: FailureReason, more: str = "") -> str:
    return failure_reasons.in_a_line(reason.kind.__name__, reason.sentence + more)
