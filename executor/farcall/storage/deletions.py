"""Deletion batcher: deletes objects in bulk, a little after they are last needed.

If the outcome is gone, a container whose request had no response stores it again, and a container
whose attempt Batch repeats would run the function again. So delivery is recorded before outcomes
are deleted: with a *receipt* if their bundle is still needed, and otherwise with the deletion of
the bundle, which a container needs to run. A container in doubt checks for both. S3 is consistent,
so an object that it does not find did not exist before:
https://docs.aws.amazon.com/AmazonS3/latest/userguide/Welcome.html#ConsistencyModel
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeAlias

import obstore
from obstore.exceptions import AlreadyExistsError
from obstore.store import S3Store

from farcall.model.errors import ServiceError, SettingsError
from farcall.model.submission import Submission
from farcall.model.timing import Timing
from farcall.storage.bucket import Bucket, reason
from farcall_runtime import envelope
from farcall_runtime.contract import Location

_log = logging.getLogger("farcall")

_MOST = 1000
"""Maximum keys per request.

https://docs.aws.amazon.com/AmazonS3/latest/API/API_DeleteObjects.html
"""

_PARALLEL = 32

Failures: TypeAlias = "Callable[[], Awaitable[list[str]]]"
"""Lists the keys of failed tasks' objects."""


@dataclass(eq=False)
class _Bundle:
    """The delivered tasks of a bundle, and the objects to delete.

    Attributes:
        submission: Its job, with the key that signs receipts.
        delivered: One bit for each of its tasks.
        keys: The keys to delete.
        number: The number of the receipt; once written, no other client writes it.
        is_begun: Whether a receipt may exist.
        is_written: Whether a receipt exists.
        is_done: Whether to delete the bundle, too, because it is no longer needed.
    """

    submission: Submission
    delivered: bytearray = field(default_factory=bytearray)
    keys: list[str] = field(default_factory=list)
    number: int = 0
    is_begun: bool = False
    is_written: bool = False
    is_done: bool = False

    @property
    def receipts(self) -> list[str]:
        """Keys of the receipts that may exist."""
        where = self.submission.where
        return [where.receipt_key(n) for n in range(self.number + 1)] if self.is_begun else []

    def note(self, index: int) -> None:
        at = index >> 3
        self.delivered.extend(bytes(max(0, at + 1 - len(self.delivered))))
        self.delivered[at] |= 1 << (index & 7)


class Deletions:
    """Deletion of a bucket's objects in bulk, for `farcall.storage.store.Store`.

    Args:
        requests: The bucket.
        timing: Contains the time that deletions wait for further ones.
    """

    def __init__(self, requests: Bucket, timing: Timing) -> None:
        self._requests = requests
        self._timing = timing
        self._doomed: list[str] = []
        self._kept: list[str] = []
        self._first: list[str] = []  # bundles without deliveries here
        self._failures: list[Failures] = []
        self._bundles: dict[Location, _Bundle] = {}
        self._waiting: dict[_Bundle, None] = {}
        self._marks: dict[Location, list[str]] = {}
        self._places = asyncio.Semaphore(_PARALLEL)
        self._sweeping: asyncio.Future[None] | None = None
        self._alone = asyncio.Lock()
        self._may_delete = True

    def delete_later(self, keys: Iterable[str]) -> None:
        """Delete objects in bulk, a little later; a failure to delete is not an error."""
        if self._may_delete:
            self._doomed.extend(keys)
            self._start()

    def delete_delivered(self, submission: Submission, index: int, keys: Iterable[str]) -> None:
        """Delete a task's objects later, including its outcome, after writing a receipt.

        Args:
            submission: Its job.
            index: Its index in the job.
            keys: The objects.
        """
        if not self._may_delete:
            return
        where = submission.where
        bundle = self._bundles.get(where)
        if bundle is None:
            bundle = self._bundles[where] = _Bundle(submission)
        bundle.note(index)
        bundle.keys.extend(keys)
        self._waiting[bundle] = None
        self._start()

    def record_mark(self, where: Location, key: str) -> None:
        """Record a marker object, to be deleted with its bundle."""
        self._marks.setdefault(where, []).append(key)

    def end_bundle(
        self, where: Location, *, delete: bool, failures: Failures | None = None
    ) -> None:
        """Record that no further tasks of a bundle are delivered here.

        Args:
            where: Its location.
            delete: Whether to delete the bundle, too, a little later.
            failures: Lists the objects of failed tasks, to be deleted after the bundle.
        """
        bundle, marks = self._bundles.pop(where, None), self._marks.pop(where, ())
        if not delete or not self._may_delete:
            return
        self._doomed.extend(marks)
        if failures is not None:
            self._failures.append(failures)
        if bundle is None:
            self._first.append(where.bundle_key)
        else:
            bundle.is_done = True
            self._waiting[bundle] = None
        self._start()

    def delete_at_close(self, keys: Iterable[str]) -> None:
        """Delete objects when the session closes; until then, callers can request them."""
        self._kept.extend(keys)

    async def close(self) -> None:
        """Delete all objects that are no longer needed."""
        self._doomed.extend(self._kept if self._may_delete else ())
        self._kept.clear()
        await self.flush()

    async def flush(self) -> None:
        """Delete all pending objects now."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        # Start the next sweep at once, so that no other starts while the cancelled one ends.
        self._sweeping = asyncio.ensure_future(self._sweep(0))
        await asyncio.gather(self._sweeping, return_exceptions=True)

    async def _delete_now(self, keys: Sequence[str]) -> None:
        """Delete objects; missing objects are no error."""
        for start in range(0, len(keys), _MOST):
            some = keys[start : start + _MOST]
            try:
                await self._delete(some)
            except FileNotFoundError:  # from a folder as the store, not from S3
                for key in some:
                    with contextlib.suppress(FileNotFoundError):
                        await self._delete([key])

    async def _delete(self, keys: Sequence[str]) -> None:
        request = partial(obstore.delete_async, paths=keys)
        await self._requests.send("DeleteObjects", keys[0], request)

    def _start(self) -> None:
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.ensure_future(self._sweep(self._timing.delete_after_s))

    async def _sweep(self, wait_s: float) -> None:
        async with self._alone:  # two sweeps would remove each other's keys from the lists
            await self._sweep_alone(wait_s)

    async def _sweep_alone(self, wait_s: float) -> None:
        while self._may_delete and (self._doomed or self._first or self._waiting):
            waiting = sum(len(bundle.keys) for bundle in self._waiting)
            if len(self._doomed) + waiting < _MOST:
                await asyncio.sleep(wait_s)
            bundles = {bundle: len(bundle.keys) for bundle in self._waiting}
            done = {bundle for bundle in bundles if bundle.is_done}
            first, others = len(self._first), len(self._doomed)
            failures = list(self._failures)
            keys = self._doomed[:others]
            for bundle, count in bundles.items():
                keys += bundle.keys[:count]
            try:
                over = [bundle.submission.where.bundle_key for bundle in done]
                await self._delete_now(self._first[:first] + over)
                await asyncio.gather(*(self._write_receipt(b) for b in bundles if b not in done))
                keys += [key for bundle in done for key in bundle.receipts]
                for each in failures:
                    keys += await each()
                await self._delete_now(keys)
            except (ServiceError, SettingsError) as error:
                self._may_delete = getattr(error, "code", "") != "AccessDenied"
                _log.warning(
                    "%d delivered objects stay in s3://%s (%s); a lifecycle rule can delete them",
                    len(keys),
                    self._requests.name,
                    reason(error),
                )
            # Only now, because a sweep may be cancelled during its request.
            del self._doomed[:others], self._first[:first], self._failures[: len(failures)]
            for bundle, count in bundles.items():
                del bundle.keys[:count]
                if not bundle.keys and (bundle in done or not bundle.is_done):
                    del self._waiting[bundle]

    async def _write_receipt(self, bundle: _Bundle) -> None:
        async with self._places:
            while not await self._put_receipt(bundle):
                bundle.number += 1  # taken by another client or an unanswered request

    async def _put_receipt(self, bundle: _Bundle) -> bool:
        """Write a receipt; return whether it was stored."""
        key = bundle.submission.where.receipt_key(bundle.number)
        submission, content = bundle.submission, bytes(bundle.delivered)
        pieces = envelope.seal_receipt(submission.key, key, content)
        data = b"".join(pieces)
        mode: Literal["create", "overwrite"] = "overwrite" if bundle.is_written else "create"
        bundle.is_begun = True

        async def put(store: S3Store) -> bool:
            try:
                await obstore.put_async(store, key, data, mode=mode, use_multipart=False)
            except AlreadyExistsError:
                return False
            return True

        bundle.is_written = await self._requests.send("PutObject", key, put)
        return bundle.is_written
