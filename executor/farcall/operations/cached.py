"""Cached results in the bucket: which functions have some, and their deletion."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from farcall.config.settings import Settings
from farcall.engine.cache import FOLDER, PACK
from farcall.engine.session import Session
from farcall_runtime.contract import run_root

_EPOCH = datetime.fromtimestamp(0, UTC)
_FUNCTION = re.compile(r"([A-Za-z0-9_-]{1,60})-([0-9a-f]{40})")


@dataclass(frozen=True)
class CachedFunction:
    """Cached results of one state of a function.

    Attributes:
        name: Name of the function.
        digest: Digest of its code, packages and Python version.
        results: Number of results; a result may be counted several times.
        size_bytes: Size of the objects.
        stored_at: When the newest result was stored.
        keys: The objects.
    """

    name: str
    digest: str
    results: int = 0
    size_bytes: int = 0
    stored_at: datetime = _EPOCH
    keys: Sequence[str] = ()


async def cached_functions(session: Session, settings: Settings) -> list[CachedFunction]:
    """Return the functions with cached results under ``prefix``, the newest first.

    Raises:
        SettingsError: The bucket does not exist.
        ServiceError: S3 refused.
    """
    store = session.stores.of(settings.s3_bucket_name)
    root = f"{run_root(settings.prefix, FOLDER)}/"
    folders: dict[str, CachedFunction] = {}
    for key, stored in (await store.list_stored(root)).items():
        folder, _, name = key.partition("/")
        function = _FUNCTION.fullmatch(folder)
        if function is None:
            continue  # other writers can store anything
        pack = PACK.fullmatch(name)
        before = folders.get(folder) or CachedFunction(function[1], function[2])
        folders[folder] = replace(
            before,
            results=before.results + (int(pack[1]) if pack else 0),
            size_bytes=before.size_bytes + stored.size,
            stored_at=max(before.stored_at, stored.at),
            keys=[*before.keys, f"{root}{key}"],
        )
    return sorted(folders.values(), key=lambda each: each.stored_at, reverse=True)


async def clear(session: Session, settings: Settings, functions: Iterable[CachedFunction]) -> None:
    """Delete the cached results of functions.

    Raises:
        ServiceError: S3 refused.
    """
    store = session.stores.of(settings.s3_bucket_name)
    await store.delete([key for each in functions for key in each.keys])
