"""Runtime archives of one session, for jobs whose image contains only Python."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from farcall.aws.access import Access
from farcall.backends.base import Backend, Runtime
from farcall.model import clock
from farcall.model.settings import Settings
from farcall.packages import runtime_archive
from farcall.packages.target import Target
from farcall.storage import packages
from farcall.storage.store import Store
from farcall_runtime.contract import runtime_prefix

_log = logging.getLogger("farcall")

_LOOK_AGAIN_S = 3600.0


@dataclass(eq=False)
class _Stored:
    """An archive in a bucket.

    Attributes:
        key: The archive's key; empty if it is not known to exist.
        looked_at: Time of the last check, by the loop's clock.
        lock: Held while the archive is uploaded.
    """

    key: str = ""
    looked_at: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Runtimes:
    """Uploader of the runtime that jobs download; checks once an hour that it exists."""

    def __init__(self, backend: Backend, access: Access) -> None:
        self._backend = backend
        self._access = access
        self._stored: dict[tuple[str, str, Target], _Stored] = {}

    async def stored(self, settings: Settings, store: Store, root: str) -> Runtime | None:
        """Upload and return a container's first download; None if its image contains it.

        Raises:
            SettingsError: The bucket does not exist.
            FarcallError: The archive cannot be built here.
            ServiceError: AWS refused a call.
        """
        if not await self._backend.needs_runtime(settings):
            return None
        target = Target(settings.architecture)
        prefix = runtime_prefix(root)
        found = self._stored.setdefault((store.bucket, prefix, target), _Stored())
        async with found.lock:
            if not found.key or clock.now() - found.looked_at > _LOOK_AGAIN_S:
                found.key = await _store(store, prefix, target)
                found.looked_at = clock.now()
        return _runtime(self._access, store.bucket, found.key, target)

    def forget(self) -> None:
        """Check the archive again before the next submission, because a job has failed."""
        self._stored.clear()


async def planned(
    backend: Backend, access: Access, settings: Settings, root: str, *, offline: bool
) -> Runtime | None:
    """Return a container's download, without an upload.

    Raises:
        FarcallError: The archive cannot be built here.
        ServiceError: AWS refused a call.
    """
    if not await backend.needs_runtime(settings, offline=offline):
        return None
    target = Target(settings.architecture)
    with tempfile.TemporaryDirectory(prefix="farcall-runtime-") as folder:
        sealed, _ = await asyncio.to_thread(runtime_archive.seal, target, Path(folder))
    key = f"{runtime_prefix(root)}{sealed.sha256}"
    return _runtime(access, settings.s3_bucket_name, key, target)


async def _store(store: Store, prefix: str, target: Target) -> str:
    """Ensure that the bucket will contain the archive for long enough; return its key."""
    with tempfile.TemporaryDirectory(prefix="farcall-runtime-") as folder:
        sealed, make = await asyncio.to_thread(runtime_archive.seal, target, Path(folder))
        if await packages.verify(store, prefix, *sealed):
            return f"{prefix}{sealed.sha256}"
        archive = await asyncio.to_thread(make)
        key = f"{prefix}{archive.sha256}"
        _log.info(
            "storing farcall's runtime for %s, %.1f MB, as s3://%s/%s",
            *(target, archive.size / 1e6, store.bucket, key),
        )
        await store.put(key, archive.pieces())
        return key


def _runtime(access: Access, bucket: str, key: str, target: Target) -> Runtime:
    url, region = access.place(bucket)
    return Runtime(url, bucket, region, key, target.architecture, target.python)
