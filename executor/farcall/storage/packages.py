"""Packages in the bucket: archives and manifests, each named by its SHA-256.

They have no owner: all users of a distribution share it, and farcall deletes none. A lifecycle
rule deletes them 30 days after they were stored, so packages in use are stored again before that.
A list shows which ones exist; a job compares each download with the digest that it received.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from farcall.aws.s3 import Stored
from farcall.model.errors import FarcallError
from farcall.storage.store import Store
from farcall_runtime.contract import packages_prefix

FRESH = timedelta(days=10)
"""Age at which an object is stored again before its next use.

A lifecycle rule deletes it 30 days after it was stored.
"""

_AT_ONCE = 4


def new(size: int) -> Stored:
    """Return the state of an object that has just been stored."""
    return Stored(size, datetime.now(UTC))


def is_kept(stored: Stored | None, size: int) -> bool:
    """Return whether an object is complete, and will exist for as long as a job may wait."""
    if stored is None or stored.size != size:
        return False
    return datetime.now(UTC) - stored.at < FRESH


async def verify(store: Store, prefix: str, sha256: str, size: int) -> bool:
    """Return whether an object exists, will not expire soon, and matches its digest.

    S3 has verified the SHA-256 of each farcall upload. An object that another user has stored
    under the same key has another SHA-256, or none.

    Args:
        store: The bucket.
        prefix: Key prefix before the digest.
        sha256: The digest.
        size: Size of the object in bytes.

    Raises:
        SettingsError: The bucket does not exist.
        ServiceError: S3 refused or could not be reached.
    """
    stored = await store.head(f"{prefix}{sha256}")
    return stored is not None and is_kept(stored, size) and stored.sha256 == sha256


async def confirm(store: Store, root: str, fact: Sequence[Any]) -> None:
    """Check that the packages of a bundle that runs again exist; renew expiring ones.

    Args:
        store: The bucket.
        root: Key prefix of the run that submits the bundle.
        fact: Digest and size of the manifest.

    Raises:
        FarcallError: A package was deleted.
        SettingsError: The bucket does not exist.
        ServiceError: S3 refused or could not be reached.
    """
    prefix = packages_prefix(root)
    digest, size = fact
    data = await store.get(f"{prefix}{digest}", size)
    if data is None or hashlib.sha256(data).hexdigest() != digest:
        raise _gone(store, prefix, "their list")
    stored = await store.list_stored(prefix)
    named = [("the list of packages", digest, size)]
    named += [(f"{each[0]} {each[1]}", *each[2:4]) for each in json.loads(data)["distributions"]]
    gone = [n for n, sha256, size in named if sha256 not in stored or stored[sha256].size != size]
    if gone:
        raise _gone(store, prefix, ", ".join(gone))
    renewing = asyncio.Semaphore(_AT_ONCE)

    async def renew(sha256: str) -> None:
        async with renewing:
            await store.renew(f"{prefix}{sha256}")

    await asyncio.gather(*(renew(s) for _, s, size in named if not is_kept(stored[s], size)))


def _gone(store: Store, prefix: str, what: str) -> FarcallError:
    return FarcallError(
        f"packages of the job are no longer at s3://{store.bucket}/{prefix}: {what}; submit the "
        "calls again, which stores them, and find out who deletes objects there: lifecycle rules "
        "must keep them for 30 days"
    )
