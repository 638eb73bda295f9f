"""Failed tasks of a job, which a retry runs again."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from farcall.engine import attempt_reporter
from farcall.model.errors import (
    JobCancelledError,
    OutOfMemoryError,
)
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.submission import Submission
from farcall.payload.results import is_success
from farcall.storage import outcomes
from farcall.storage.store import Store, number_in
from farcall_runtime import contract, envelope
from farcall_runtime.contract import ExitCode

if TYPE_CHECKING:
    from farcall.engine.session import Session


_PARALLEL = 32


LARGE_BYTES = 1024 * 1024


_LARGE_AT_ONCE = 2


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


async def ends(
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
        children = await session.backend.describe(map(submission.id_of, only))
        unfinished = sum(not child.status.is_final for child in children.values())
        failed = [child for child in children.values() if child.status is JobStatus.FAILED]
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
        async with few if size > LARGE_BYTES else many:
            try:
                outcome = await outcomes.fetch(store, submission, key, size=size)
            except envelope.EnvelopeError:  # the job did not write it
                return False
        meta = outcome.outcome.meta if outcome is not None else None
        if meta is None or not is_success(meta):
            return False
        return detail is None or attempt_reporter.is_the_end(meta, detail)

    completeness = await asyncio.gather(*map(is_complete, doubtful))
    return {index for index, complete in zip(doubtful, completeness, strict=True) if complete}


async def _stored(store: Store, submission: Submission) -> dict[int, int]:
    """Return the sizes of a job's outcomes by task index."""
    sizes: dict[int, int] = {}
    after = ""
    while True:
        page, after = await store.list_outcomes(
            submission.where.root, bundle=submission.where.bundle, after=after
        )
        sizes.update({each.index: each.size for each in page})
        if not after:
            return sizes


async def _attempted(store: Store, submission: Submission) -> dict[int, dict[int, int]]:
    """Return the sizes of failed attempts' outcomes, by task index and attempt number."""
    prefix = submission.where.attempts_prefix
    sizes: dict[int, dict[int, int]] = {}
    for key, size in await store.list_keys(prefix):
        index, _, attempt = key[len(prefix) :].partition("/")
        numbers = number_in(index), number_in(attempt)
        if numbers[0] is not None and numbers[1] is not None:  # other writers can store anything
            sizes.setdefault(numbers[0], {})[numbers[1]] = size
    return sizes
