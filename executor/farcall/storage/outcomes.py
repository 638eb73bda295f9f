"""Outcome reader: fetches and verifies the outcomes that containers stored.

It unpickles nothing, and deletes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Container
from concurrent.futures import Executor
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from farcall.model.errors import FarcallError
from farcall.model.submission import Submission
from farcall.payload.results import is_success
from farcall.payload.sources import localized
from farcall.storage.rereads import until_intact
from farcall.storage.store import Store, is_chunk, number_in
from farcall_runtime import envelope
from farcall_runtime.contract import STREAMS, VALUE_PART_BYTES
from farcall_runtime.envelope import Outcome

_INLINE_BYTES = 64 * 1024
"""Maximum size of objects that are verified without a thread, which takes longer."""

T = TypeVar("T")


class Stored(NamedTuple):
    """An outcome that the job wrote.

    Attributes:
        outcome: Its content.
        at: Time at which it was stored.
        size: Size of the object in bytes.
    """

    outcome: Outcome
    at: datetime
    size: int


async def fetch(
    store: Store,
    submission: Submission,
    key: str,
    *,
    size: int | None = None,
    threads: Executor | None = None,
) -> Stored | None:
    """Return an outcome, final or of an attempt; None if it does not exist.

    Args:
        store: The bucket.
        submission: The task's job.
        key: The object's key.
        size: Its size in bytes, if known.
        threads: Verifies large outcomes; by default the event loop's threads.

    Raises:
        EnvelopeError: The job did not write it, or another version of farcall did.
        SettingsError: The bucket does not exist.
        ServiceError: S3 refused or could not be reached.
    """

    async def read() -> tuple[Outcome, datetime, int] | None:
        dated = await store.get_dated(key, size=size)
        if dated is None:
            return None
        data, at = dated
        opened = await verified(envelope.open_outcome, submission, key, data, threads)
        return opened, at, len(data)

    stored = await until_intact(read)
    if stored is None:
        return None
    outcome, at, length = stored
    if not is_success(outcome.meta):  # errors contain paths
        outcome = outcome._replace(meta=localized(outcome.meta))
    return Stored(outcome, at, length)


async def verified(
    function: Callable[[bytes, str, bytearray], T],
    submission: Submission,
    key: str,
    data: bytearray,
    threads: Executor | None = None,
) -> T:
    """Open an object that a job has signed; a large one in a thread.

    Args:
        function: Opens it: `envelope.open_outcome` or a similar function.
        submission: The job.
        key: The object's key.
        data: The object.
        threads: See `fetch`.

    Raises:
        EnvelopeError: The job did not write it, or another version of farcall did.
    """
    if len(data) <= _INLINE_BYTES:
        return function(submission.key, key, data)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(threads, function, submission.key, key, data)


async def deletable_keys(
    store: Store, submission: Submission, index: int, meta: dict[str, Any]
) -> list[str]:
    """Return the keys of a task's objects except its output; some may not exist.

    Output and results of attempts before the last one are listed, because no outcome describes
    them if the host was lost.

    Args:
        store: The bucket.
        submission: The task's job.
        index: Index of the task, or of the node.
        meta: The outcome's description.
    """
    where, attempt = submission.where, int(meta["attempt"])
    is_other_node = submission.is_other_node(index)
    keys = [where.node_key(attempt, index) if is_other_node else where.outcome_key(index)]
    if "value" in meta:
        parts = range(-(-meta["value"]["size"] // VALUE_PART_BYTES))
        keys += [where.value_key(index, attempt, part) for part in parts]
    for earlier in range(1, attempt):
        keys.append(submission.attempt_key(index, earlier))
        folders = [where.value_prefix(index, earlier)]
        folders += [where.stream_prefix(index, earlier, stream) for stream in STREAMS]
        for prefix in folders:
            with contextlib.suppress(FarcallError):  # remaining objects do no harm
                listed = [key for key, _ in await store.list_keys(prefix)]
                keys += [key for key in listed if is_chunk(key.removeprefix(prefix))]
    return keys


async def failed_keys(store: Store, submission: Submission, indexes: Container[int]) -> list[str]:
    """Return the keys of failed tasks' objects, and of the notes on the job's retries.

    Args:
        store: The bucket.
        submission: The tasks' job.
        indexes: Indexes of the tasks.
    """
    where = submission.where
    keys = [key for key, _ in await store.list_keys(where.retries_prefix)]
    for prefix in where.prefixes:
        for key, _ in await store.list_keys(prefix):
            index = number_in(key.removeprefix(prefix).partition("/")[0])
            if submission.nodes > 1 or index in indexes:
                keys.append(key)
    return keys
