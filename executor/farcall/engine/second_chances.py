"""Second chances: failed tasks that run again with more memory, or in the next queue.

A task that ran out of memory, by the evidence of its supervisor or of the platform, gets the next
value of ``memory``; a task whose host was lost, or for which no instance came within
``queue_patience``, gets the next queue. Which values are next follows from the failed job itself,
so a recovered or retried job continues where it is.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from farcall.config.ladders import Ladders
from farcall.engine.delivered import Delivered
from farcall.engine.group import Place, TaskGroup
from farcall.engine.retry_notes import ClaimedError, retries_of
from farcall.model.errors import (
    HostLostError,
    JobStuckError,
    NothingToRetryError,
    OutOfMemoryError,
)
from farcall.model.failure_reasons import NO_INSTANCE, OWN_REASON
from farcall.model.jobs import NOT_STARTED, JobDetail
from farcall.model.submission import Submission
from farcall.payload.results import add_note, of_process
from farcall_runtime.contract import OutcomeStatus

if TYPE_CHECKING:
    from farcall.engine.session import Session

_TOGETHER_S = 1.0
"""Time in seconds that a failed task waits for others, so that they share one job."""

_CLAIMED_S = 10.0
"""Mean time in seconds until a task that another client is about to run again is checked."""


class Chance(NamedTuple):
    """A failed task, and its next attempt.

    Attributes:
        place: The new job, and the task's index in it; None if no value is left.
        attempt: Description of the failed attempt, for the error if all fail.
    """

    place: Place | None
    attempt: str


class SecondChances:
    """Second chances of one session's tasks.

    Args:
        session: The session.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    async def take(self, group: TaskGroup, index: int, delivered: Delivered) -> Chance:
        """Run a failed task again, if its options have a next value for its failure.

        Tasks of a job that fail within a moment, or before the last of its tasks has started,
        share one new job. Cancelling the wait withdraws the request; a job that is accepted anyway
        is terminated.

        Args:
            group: The task's job.
            index: The task's index in the job.
            delivered: The failed task's outcome, for which `is_due` is true.

        Raises:
            FarcallError: The task cannot run again.
        """
        submission = group.submission
        detail = await self._session.describe(submission.job_id)
        options = _next_options(group.settings.ladders, delivered, detail)
        attempt = describe_attempt(detail, delivered)
        if not options:
            return Chance(None, attempt)
        await self._until_started(submission.job_id)
        place = await self._run_again(group, index, options)
        group.record_restart(index, place)
        return Chance(place, attempt)

    async def _run_again(self, group: TaskGroup, index: int, options: Mapping[str, Any]) -> Place:
        """Run a task again; if another caller or client does so already, return its job.

        A client that was killed before it submitted the job blocks this for a minute.
        """
        while True:
            try:
                return await self._session.retries.run(
                    group.settings,
                    group.id_of(index),
                    options,
                    has_ended=True,
                    wait_s=_TOGETHER_S,
                    is_chance=True,
                )
            except NothingToRetryError as error:
                place = await self._existing(group, index)
                if place is not None:
                    return place
                if not isinstance(error, ClaimedError):
                    raise
            # Two clients that wait equally long would block each other again.
            await asyncio.sleep(_CLAIMED_S * random.uniform(0.5, 1.5))  # noqa: S311

    async def _until_started(self, job_id: str) -> None:
        """Wait until all tasks of a job have started.

        Before, a new job would only wait behind them; so more failed tasks share it.
        """
        while True:
            detail = self._session.tracker.latest(job_id)
            summary = detail.status_summary if detail is not None else {}
            if not sum(summary.get(status.value, 0) for status in NOT_STARTED):
                return
            await asyncio.sleep(_TOGETHER_S)

    async def _existing(self, group: TaskGroup, index: int) -> Place | None:
        """Return the job of an earlier client that runs the task again."""
        for retry in reversed(await retries_of(self._session, group.submission)):
            if index in retry.origin:
                detail = await self._session.describe(retry.job_id)
                submission = Submission.whole(detail)
                return TaskGroup(group.services, submission, group.settings), retry.origin.index(
                    index
                )
        return None


def is_due(ladders: Ladders, delivered: Delivered) -> bool:
    """Return whether a failure is of a kind for which the options have several values."""
    if ladders.memory and _has(OutOfMemoryError, delivered):
        return True
    return bool(ladders.queue) and (_has(HostLostError, delivered) or _had_no_instance(delivered))


def describe_attempt(detail: JobDetail, delivered: Delivered) -> str:
    """Describe an attempt's memory and queue in one line."""
    size = f"{(detail.memory_mib or 0) / 1024:.3g} GiB"
    # The container's peak if the kernel reports it, because the process's own is only a part.
    peak = (delivered.meta or {}).get("memory_peak_bytes") or delivered.usage.peak_memory_bytes
    used = ""
    if peak:
        used = f", peak {peak / 2**30:.2g} GiB"
    elif _has(OutOfMemoryError, delivered):  # the container was killed, and its supervisor with it
        used = f", killed at a peak of {size}"
    elif _had_no_instance(delivered):
        used = ", no instance came within queue_patience"
    return f"memory={size} in queue {detail.queue}{used}"


def add_attempts(delivered: Delivered, earlier: Sequence[str], last: Chance | None) -> None:
    """Add the attempts to the errors of a task that failed more than once."""
    text = f"Earlier attempts: {'; '.join(earlier)}"
    if last is not None:
        text += f". Last attempt: {last.attempt}"
    for result in delivered.results if earlier else ():
        if result.error is not None:
            add_note(result.error, text)


def _has(kind: type[BaseException], delivered: Delivered) -> bool:
    if any(isinstance(result.error, kind) for result in delivered.results):
        return True
    # The result of electrons holds texts in place of errors.
    meta = delivered.meta
    if meta is None or meta["status"] == OutcomeStatus.DONE:
        return False
    return issubclass(of_process(meta).kind, kind)


def _had_no_instance(delivered: Delivered) -> bool:
    errors = (result.error for result in delivered.results)
    reason = f"{OWN_REASON}{NO_INSTANCE}"
    return any(isinstance(each, JobStuckError) and reason in each.reason for each in errors)


def _next_options(ladders: Ladders, delivered: Delivered, detail: JobDetail) -> dict[str, Any]:
    if _has(OutOfMemoryError, delivered):
        return dict(ladders.more_memory((detail.memory_mib or 0) / 1024))
    return dict(ladders.next_queue(detail.queue))
