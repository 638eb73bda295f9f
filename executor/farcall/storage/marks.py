"""Cancel marks: what tells the container of one task of an array that it is not to run any more.

A platform that starts a task again, whoever ended it, or has not started it yet, knows no other
way to end one of many. The mark is signed with the bundle's key, so nobody else can write one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from farcall.model.submission import Submission
from farcall.storage.store import Store
from farcall_runtime import envelope

_PARALLEL = 32


async def mark_cancelled(
    store: Store, submission: Submission, indexes: Iterable[int], reason: str
) -> None:
    """Store the marks of tasks of an array, which are deleted with its bundle.

    Raises:
        ServiceError: S3 refused.
    """
    places = asyncio.Semaphore(_PARALLEL)

    async def mark(index: int) -> None:
        key = submission.where.cancelled_key(index)
        async with places:
            pieces = envelope.seal_note(submission.key, key, {"reason": reason})
            await store.put(key, pieces, quick=True)
        store.note_mark(submission.where, key)

    await asyncio.gather(*map(mark, indexes))
