"""Notes on retries: which jobs run tasks of a bundle again, told beside that bundle.

A note is written before its job is submitted, and once more when the job has an ID. It is signed
with the outcome key of the bundle whose tasks they are, so nobody who can but write the bucket
makes a call look as if it had been run again.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from farcall.model.submission import Submission
from farcall.storage.store import Store
from farcall_runtime import envelope
from farcall_runtime.contract import Location

ORIGIN = "origin"
"""Fact of a retry's bundle, and part of its note: the number that each task had before."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_MOST_NOTES = 1000
_MOST_BYTES = 4 * 1024 * 1024
_PARALLEL = 16


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
    """Store a note, or store it anew.

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
    places = asyncio.Semaphore(_PARALLEL)

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
