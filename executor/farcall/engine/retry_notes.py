"""Retry notes: which jobs are retries of a job, stored next to that job's bundle.

A note is written before its job is submitted, and again when the job has an ID. It is signed with
the outcome key of the bundle whose tasks run again, so that write access to the bucket is not
enough to forge a retry.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from farcall.model.errors import NothingToRetryError
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.submission import Submission
from farcall.storage.store import Store
from farcall_runtime import contract, envelope
from farcall_runtime.contract import Location

if TYPE_CHECKING:
    from farcall.engine.session import Session


_MOST_BYTES = 4 * 1024 * 1024


_NOTES_AT_ONCE = 16


class ClaimedError(NothingToRetryError):
    """Another caller or client is about to retry the task."""


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


def key_of(of: Submission, bundle: str) -> str:
    """Return a note's key, which other writers of the bucket can neither guess nor crowd out."""
    name = of.where.retry_key(bundle)
    return f"{name}.{hmac.new(of.key, name.encode(), hashlib.sha256).hexdigest()[:32]}"


async def write(store: Store, of: Submission, note: Note) -> None:
    """Store a note, or replace it.

    Raises:
        ServiceError: S3 refused.
    """
    key = key_of(of, note.where.bundle)
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
    listed = [key for key in keys if key == key_of(of, key[len(prefix) :].rpartition(".")[0])]
    places = asyncio.Semaphore(_NOTES_AT_ONCE)

    async def one(key: str) -> Note | None:
        async with places:
            with contextlib.suppress(envelope.EnvelopeError):
                dated = await store.get_dated(key, most=_MOST_BYTES)
                if dated is not None:
                    return _parsed(envelope.open_note(of.key, key, dated[0]), dated[1])
        return None

    notes = await asyncio.gather(*map(one, listed))
    return [note for note in notes if note is not None]


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
        where: Location of its bundle.
    """

    job_id: str
    origin: tuple[int, ...]
    where: Location


async def retries_of(session: Session, submission: Submission) -> list[Retry]:
    """Return the retries of a job that Batch still knows, the oldest first.

    Raises:
        ServiceError: AWS refused a call.
    """
    return await confirmed(session, submission, await notes_of(session, submission))


async def notes_of(session: Session, submission: Submission) -> list[Note]:
    """Return the notes on the retries of a job; see `read`."""
    return await read(session.stores.of(submission.where.bucket), submission)


async def confirmed(session: Session, submission: Submission, notes: list[Note]) -> list[Retry]:
    """Return the retries that notes describe and Batch knows, the oldest first."""
    details = await asyncio.gather(*(_find(session, submission, note) for note in notes))
    pairs = [
        (detail, note) for detail, note in zip(details, notes, strict=True) if detail is not None
    ]
    oldest = datetime.min.replace(tzinfo=UTC)
    pairs.sort(key=lambda pair: pair[0].created_at or oldest)
    return [Retry(detail.job_id, note.origin, note.where) for detail, note in pairs]


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
