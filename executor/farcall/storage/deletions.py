"""Deletion batcher: objects are deleted in bulk, a little after nobody needs them any more.

A container whose request was not answered stores its outcome again, and one whose attempt Batch
repeats would run the function again, where the outcome is gone. So before outcomes are deleted
it is said that they were delivered: by a *receipt* for those of a bundle that others still need,
and otherwise by the deletion of the bundle, which a container needs to run. A container that has
reason to asks for both; S3 is consistent, so what it does not find was not there before.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/Welcome.html#ConsistencyModel
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

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
"""Keys in one request, https://docs.aws.amazon.com/AmazonS3/latest/API/API_DeleteObjects.html"""

_PARALLEL = 32


@dataclass(eq=False)
class _Bundle:
    """What was delivered of a bundle, and is to be deleted.

    Attributes:
        submission: Its job, with the key that receipts are signed with.
        delivered: A bit for each task of it.
        peaks: The peak memory of each in KiB, which its receipt tells whoever looks.
        keys: What is to be deleted.
        number: That of the receipt, which nobody else writes once it is there.
        is_begun: Whether there may be a receipt.
        is_written: Whether there is.
        is_done: Whether it is to be deleted, too, because nobody needs it any more.
    """

    submission: Submission
    delivered: bytearray = field(default_factory=bytearray)
    peaks: array[int] = field(default_factory=lambda: array("Q"))
    keys: list[str] = field(default_factory=list)
    number: int = 0
    is_begun: bool = False
    is_written: bool = False
    is_done: bool = False

    @property
    def receipts(self) -> list[str]:
        """Keys of the receipts that there may be."""
        where = self.submission.where
        return [where.receipt_key(n) for n in range(self.number + 1)] if self.is_begun else []

    def note(self, index: int, peak_bytes: int) -> None:
        at = index >> 3
        self.delivered.extend(bytes(max(0, at + 1 - len(self.delivered))))
        self.delivered[at] |= 1 << (index & 7)
        self.peaks.extend([0] * max(0, index + 1 - len(self.peaks)))
        self.peaks[index] = peak_bytes >> 10


class Deletions:
    """The objects of one bucket that are to be deleted. Failing to is not an error.

    Args:
        bucket: The bucket.
        timing: How long what is deleted waits for more.
    """

    def __init__(self, bucket: Bucket, timing: Timing) -> None:
        self._bucket = bucket
        self._timing = timing
        self._doomed: list[str] = []
        self._first: list[str] = []  # bundles of which nothing was delivered here
        self._bundles: dict[Location, _Bundle] = {}
        self._waiting: dict[_Bundle, None] = {}
        self._marks: dict[Location, list[str]] = {}
        self._places = asyncio.Semaphore(_PARALLEL)
        self._sweeping: asyncio.Future[None] | None = None
        self._alone = asyncio.Lock()
        self._may_delete = True

    def add(self, keys: Iterable[str]) -> None:
        """Delete objects together with others that come within a moment."""
        if self._may_delete:
            self._doomed.extend(keys)
            self._start()

    def add_delivered(
        self, submission: Submission, index: int, keys: Iterable[str], peak_bytes: int = 0
    ) -> None:
        """Delete the objects of a task, its outcome too, after a note that they were."""
        if not self._may_delete:
            return
        where = submission.where
        bundle = self._bundles.get(where)
        if bundle is None:
            bundle = self._bundles[where] = _Bundle(submission)
        bundle.note(index, peak_bytes)
        bundle.keys.extend(keys)
        self._waiting[bundle] = None
        self._start()

    def note_mark(self, where: Location, key: str) -> None:
        """Note a mark that is of no more use once its bundle is deleted."""
        self._marks.setdefault(where, []).append(key)

    def end_bundle(self, where: Location, *, delete: bool) -> None:
        """Note that nothing else of a bundle is delivered here."""
        bundle, marks = self._bundles.pop(where, None), self._marks.pop(where, ())
        if not delete or not self._may_delete:
            return
        self._doomed.extend(marks)
        if bundle is None:
            self._first.append(where.bundle_key)
        else:
            bundle.is_done = True
            self._waiting[bundle] = None
        self._start()

    async def flush(self) -> None:
        """Delete now what was to be deleted later."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        # At once, so that none is started while that one ends.
        self._sweeping = asyncio.ensure_future(self._sweep(0))
        await asyncio.gather(self._sweeping, return_exceptions=True)

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects now; those that are not there are no error.

        Raises:
            SettingsError: There is no such bucket.
            ServiceError: S3 refused or could not be reached.
        """
        for start in range(0, len(keys), _MOST):
            some = keys[start : start + _MOST]
            try:
                await self._delete(some)
            except FileNotFoundError:  # S3 has no such answer; a folder goes no further then
                for key in some:
                    with contextlib.suppress(FileNotFoundError):
                        await self._delete([key])

    async def _delete(self, keys: Sequence[str]) -> None:
        request = partial(obstore.delete_async, paths=keys)
        await self._bucket.ask("DeleteObjects", keys[0], request)

    def _start(self) -> None:
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.ensure_future(self._sweep(self._timing.delete_after_s))

    async def _sweep(self, wait_s: float) -> None:
        async with self._alone:  # two at a time would take each other's keys off the list
            await self._sweep_alone(wait_s)

    async def _sweep_alone(self, wait_s: float) -> None:
        while self._may_delete and (self._doomed or self._first or self._waiting):
            waiting = sum(len(bundle.keys) for bundle in self._waiting)
            if len(self._doomed) + waiting < _MOST:
                await asyncio.sleep(wait_s)
            bundles = {bundle: len(bundle.keys) for bundle in self._waiting}
            done = {bundle for bundle in bundles if bundle.is_done}
            first, others = len(self._first), len(self._doomed)
            keys = self._doomed[:others]
            for bundle, count in bundles.items():
                keys += bundle.keys[:count]
            try:
                over = [bundle.submission.where.bundle_key for bundle in done]
                await self.delete(self._first[:first] + over)
                await asyncio.gather(*(self._write_receipt(b) for b in bundles if b not in done))
                keys += [key for bundle in done for key in bundle.receipts]
                await self.delete(keys)
            except (ServiceError, SettingsError) as error:
                self._may_delete = getattr(error, "code", "") != "AccessDenied"
                _log.warning(
                    "%d delivered objects stay in s3://%s (%s); a lifecycle rule can delete them",
                    len(keys),
                    self._bucket.name,
                    reason(error),
                )
            # Only now: a sweep may be cancelled in its request.
            del self._doomed[:others], self._first[:first]
            for bundle, count in bundles.items():
                del bundle.keys[:count]
                if not bundle.keys and (bundle in done or not bundle.is_done):
                    del self._waiting[bundle]

    async def _write_receipt(self, bundle: _Bundle) -> None:
        async with self._places:
            while not await self._put_receipt(bundle):
                bundle.number += 1  # another client's, or of a request whose answer was lost

    async def _put_receipt(self, bundle: _Bundle) -> bool:
        """Write a receipt; say whether it is there."""
        key = bundle.submission.where.receipt_key(bundle.number)
        submission, said = bundle.submission, bytes(bundle.delivered)
        pieces = envelope.seal_receipt(submission.key, key, said, bundle.peaks)
        data = b"".join(pieces)
        mode: Literal["create", "overwrite"] = "overwrite" if bundle.is_written else "create"
        bundle.is_begun = True

        async def put(store: S3Store) -> bool:
            try:
                await obstore.put_async(store, key, data, mode=mode, use_multipart=False)
            except AlreadyExistsError:
                return False
            return True

        bundle.is_written = await self._bucket.ask("PutObject", key, put)
        return bundle.is_written
