"""Deletes objects in bulk, a little after nobody needs them any more."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Sequence
from functools import partial

import obstore

from farcall.bucket import Bucket, reason
from farcall.errors import ServiceError, SettingsError

_log = logging.getLogger("farcall")

_MOST = 1000
"""Keys in one request, https://docs.aws.amazon.com/AmazonS3/latest/API/API_DeleteObjects.html"""

_WAIT_S = 1.0


class Deletions:
    """The objects of one bucket that are to be deleted. Failing to is not an error.

    Args:
        bucket: The bucket.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._doomed: list[str] = []
        self._sweeping: asyncio.Future[None] | None = None
        self._may_delete = True

    def add(self, keys: Iterable[str]) -> None:
        """Delete objects together with others that come within a moment."""
        if not self._may_delete:
            return
        self._doomed.extend(keys)
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.ensure_future(self._sweep(_WAIT_S))

    async def flush(self) -> None:
        """Delete now what was to be deleted later."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        await self._sweep(0)

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete up to 1000 objects now; those that are not there are no error.

        Raises:
            SettingsError: There is no such bucket.
            ServiceError: S3 refused or could not be reached.
        """
        request = partial(obstore.delete_async, paths=keys)
        with contextlib.suppress(FileNotFoundError):
            await self._bucket.ask("DeleteObjects", keys[0], request)

    async def _sweep(self, wait_s: float) -> None:
        while self._doomed and self._may_delete:
            if len(self._doomed) < _MOST:
                await asyncio.sleep(wait_s)
            keys = self._doomed[:_MOST]
            try:
                await self.delete(keys)
            except (ServiceError, SettingsError) as error:
                self._may_delete = getattr(error, "code", "") != "AccessDenied"
                _log.warning(
                    "%d delivered objects stay in s3://%s (%s); a lifecycle rule can delete them",
                    len(keys),
                    self._bucket.name,
                    reason(error),
                )
            del self._doomed[: len(keys)]  # only now: a sweep may be cancelled in its request
