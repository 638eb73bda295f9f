"""Workspace store: archives in the bucket, each stored once, under its hash.

Nobody owns one: the jobs of whoever has the same files share it. So farcall deletes none, and a
lifecycle rule of the bucket does. What a job fetches it compares with the hash that it was told.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone

from farcall.payload.archive import Archive
from farcall.storage.store import Store
from farcall_runtime.contract import run_root

_log = logging.getLogger("farcall")

FRESH = timedelta(days=7)
"""What was stored longer ago is stored anew: a lifecycle rule, which counts days from then, leaves
what is in use."""


def key_of(prefix: str, sha256: str) -> str:
    """Return the key of an archive."""
    return f"{run_root(prefix, 'workspaces')}/{sha256}.tar.gz"


async def put_once(store: Store, key: str, archive: Archive) -> bool:
    """Store an archive, unless it is there.

    Two clients that do so at once store the same bytes twice, which harms nobody.

    Returns:
        Whether it was stored now.

    Raises:
        SettingsError: There is no such bucket.
        ServiceError: S3 refused or could not be reached.
    """
    found = await store.stored(key)
    if found is not None:
        size, at = found
        if size == archive.size and datetime.now(timezone.utc) - at < FRESH:
            return False
    _log.info(
        "storing the workspace, %.1f MB of %d files, as s3://%s/%s",
        *(archive.size / 1e6, archive.files, store.bucket, key),
    )
    await store.put(key, archive.pieces())
    return True
