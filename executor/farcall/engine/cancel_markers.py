"""Cancel markers: objects that ask the container of one array task to exit.

Some platforms cannot terminate one task of an array, because they would restart it. A marker is
signed with the bundle's key, so that other users of the bucket cannot write one.
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
    """Store the cancel markers of array tasks; they are deleted with the bundle.

    Raises:
        ServiceError: S3 refused.
    """
    places = asyncio.Semaphore(_PARALLEL)

    async def mark(index: int) -> None:
        key = submission.where.cancelled_key(index)
        async with places:
            pieces = envelope.seal_note(submission.key, key, {"reason": reason})
            await store.put(key, pieces, quick=True)
        store.record_mark(submission.where, key)

    await asyncio.gather(*map(mark, indexes))
