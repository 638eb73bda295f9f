"""Packages and farcall's runtime, packed and uploaded before jobs are submitted.

Before each submission, installed packages are compared only by the names and times of their
metadata. The bucket's packages are listed once, and again after an hour or after a job has failed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from farcall import filesystem
from farcall.aws.access import Access
from farcall.aws.s3 import Stored
from farcall.backends.base import Runtime, Submissions
from farcall.config.settings import Settings
from farcall.engine.worker_threads import WorkerThreads
from farcall.model import clock
from farcall.model.errors import FarcallError, ServiceError
from farcall.model.names import counted
from farcall.packages import environment, imported, installed, runtime_archive, wanted
from farcall.packages.archives import Archive
from farcall.packages.environment import Environment, Item, Manifest, Packed
from farcall.packages.target import Target
from farcall.storage import packages
from farcall.storage.store import Store
from farcall_runtime.contract import packages_prefix, runtime_prefix

_log = logging.getLogger("farcall")

_LISTED_S = 3600.0
_FIRST_S, _NEXT_S = 2.0, 10.0
_UPLOADS = 4
_FOLDER = "farcall-packages-"
_OPTIONS = ("packages", "extra_packages", "exclude_packages", "architecture")


class Planned(NamedTuple):
    """A distribution that would be synced.

    Attributes:
        packed: The distribution's archive.
        is_stored: Whether the bucket has it; None if that was not checked.
    """

    packed: Packed
    is_stored: bool | None


class TaskPackages:
    """Packages that tasks of one session need."""

    def __init__(self, threads: WorkerThreads) -> None:
        self._threads = threads
        self._package_sets: dict[str, tuple[object, Environment]] = {}
        self._stored: dict[tuple[Store, str], tuple[float, dict[str, Stored]]] = {}
        self._locks: dict[tuple[Store, str], asyncio.Lock] = {}
        self._judged: dict[tuple[Store, str, str], asyncio.Future[list[str] | None]] = {}

    async def store(self, store: Store, root: str, settings: Settings) -> list[str | int] | None:
        """Ensure that the bucket contains the packages that the options name.

        Returns:
            The bundle's record of them; None if the image contains all.

        Raises:
            SettingsError: The packages are not available for the jobs; nothing is submitted.
            FarcallError: No index was reached, or an archive could not be made.
            ServiceError: S3 refused a request or could not be reached.
        """
        if not environment.is_wanted(settings):
            return None
        async with self._locks.setdefault((store, root), asyncio.Lock()):
            package_set = await self._threads.run(self._find, settings)
            if not package_set.items:
                return None
            stored = await self._list(store, root)
            lacking = [each for each in package_set.items if not _is_there(stored, each.packed)]
            if lacking:
                done = await _pack(lacking, package_set, _Upload(store, root, stored))
                package_set = self._note(settings, package_set, done)
            sealed = package_set.manifest
            if not packages.is_kept(stored.get(sealed.sha256), len(sealed.data)):
                key = f"{packages_prefix(root)}{sealed.sha256}"
                await store.put(key, [sealed.data], quick=True)
                stored[sealed.sha256] = packages.new(len(sealed.data))
            return sealed.fact

    def names(self, settings: Settings) -> list[tuple[str, str]]:
        """Return the names of the packages that the options name, and texts for their content.

        Raises:
            SettingsError: The packages are not available for the jobs.
        """
        if not environment.is_wanted(settings):
            return []
        return [(each.name, each.key) for each in self._find(settings).items]

    async def adding(
        self, store: Store, root: str, settings: Settings, requirements: Sequence[str]
    ) -> Settings | None:
        """Sync requirements in addition to the options' packages, if possible.

        Many tasks request the same packages: one check serves all of them, until a task fails.

        Args:
            store: The bucket.
            root: Key prefix of the run.
            settings: The options.
            requirements: Such as ``numpy>=2``.

        Returns:
            The options with the missing packages; None if a package is not available here, or is
            excluded.

        Raises:
            ServiceError: S3 refused a request or could not be reached.
        """
        key = store, root, repr([*(getattr(settings, name) for name in _OPTIONS), *requirements])
        judged = self._judged.get(key)
        if judged is None or _failed(judged):
            judged = asyncio.ensure_future(self._add(store, root, settings, requirements))
            self._judged[key] = judged
        added = await asyncio.shield(judged)
        return None if added is None else settings.with_packages(added)

    async def _add(
        self, store: Store, root: str, settings: Settings, requirements: Sequence[str]
    ) -> list[str] | None:
        try:
            added = await self._threads.run(self._lacking, settings, requirements)
            if added:
                await self.store(store, root, settings.with_packages(added))
        except ServiceError:
            raise
        except (FarcallError, ValueError) as error:
            _log.info("%s: to be installed in the job: %s", ", ".join(requirements), error)
            return None
        return added

    def _lacking(self, settings: Settings, requirements: Sequence[str]) -> list[str]:
        package_set = self._find(settings) if environment.is_wanted(settings) else None
        return environment.lacking(settings, package_set, requirements)

    async def plan(
        self, store: Store | None, root: str, settings: Settings
    ) -> tuple[Environment, Manifest | None, list[Planned]]:
        """Return the packages that would be synced, packed to determine their size.

        Args:
            store: The bucket; None to make no requests.
            root: Key prefix of any run.
            settings: The options.

        Raises:
            SettingsError: The packages are not available for the jobs.
            FarcallError: No index was reached, or an archive could not be made.
            ServiceError: S3 refused a request or could not be reached.
        """
        package_set = await self._threads.run(self._find, settings)
        lacking = [each for each in package_set.items if each.packed is None]
        if lacking:
            done = await _pack(lacking, package_set)
            package_set = self._note(settings, package_set, done)
        stored = None if store is None else await self._list(store, root)
        planned = [
            Planned(each, None if stored is None else _is_there(stored, each))
            for each in (item.packed for item in package_set.items)
            if each is not None
        ]
        return package_set, package_set.manifest if planned else None, planned

    def forget(self) -> None:
        """List the bucket's packages again before the next submission: one may be missing."""
        self._stored.clear()
        self._judged.clear()

    def _find(self, settings: Settings) -> Environment:
        """Return the environment, read again only if packages were installed or changed."""
        key = repr([getattr(settings, name) for name in _OPTIONS])
        stamp = _stamp(settings)
        before, package_set = self._package_sets.get(key, (None, None))
        if package_set is None or before != stamp:
            package_set = environment.find(settings)
            self._package_sets[key] = stamp, package_set
        return package_set

    def _note(
        self, settings: Settings, package_set: Environment, done: Mapping[str, Packed]
    ) -> Environment:
        items = [
            replace(each, packed=done[each.name], version=done[each.name].version)
            if each.name in done
            else each
            for each in package_set.items
        ]
        package_set = replace(package_set, items=items)
        key = repr([getattr(settings, name) for name in _OPTIONS])
        self._package_sets[key] = self._package_sets[key][0], package_set
        return package_set

    async def _list(self, store: Store, root: str) -> dict[str, Stored]:
        at, stored = self._stored.get((store, root), (0.0, {}))
        if not at or time.monotonic() - at > _LISTED_S:
            at, stored = time.monotonic(), await store.list_stored(packages_prefix(root))
            self._stored[store, root] = at, stored
        return stored


def _failed(answer: asyncio.Future[Any]) -> bool:
    return answer.done() and (answer.cancelled() or answer.exception() is not None)


def _stamp(settings: Settings) -> object:
    """Return a value that changes if the options name other packages."""
    if settings.packages in (wanted.LOCAL, wanted.AUTO):
        names = imported.modules(settings) if settings.packages == wanted.AUTO else ()
        return [each.stamp for each in installed.scan()], names
    if isinstance(settings.packages, str):
        try:
            stat = Path(settings.packages).expanduser().stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size
    return ()


def _is_there(stored: Mapping[str, Stored], packed: Packed | None) -> bool:
    return packed is not None and packages.is_kept(stored.get(packed.sha256), packed.size)


class _Upload:
    """Uploader of archives that the bucket lacks.

    Args:
        store: The bucket.
        root: Key prefix of the run.
        stored: The bucket's archives; uploads are added.
    """

    def __init__(self, store: Store, root: str, stored: dict[str, Stored]) -> None:
        self._store = store
        self._root = root
        self._stored = stored
        self._places = asyncio.Semaphore(_UPLOADS)
        self._sent = 0

    async def add(self, packed: Packed, archive: Archive) -> None:
        """Upload an archive, unless it exists."""
        if _is_there(self._stored, packed):
            return
        async with self._places:
            key = f"{packages_prefix(self._root)}{packed.sha256}"
            await self._store.put(key, archive.pieces(), on_sent=self._note)
        self._stored[packed.sha256] = packages.new(packed.size)

    def report(self, text: str) -> None:
        """Log progress, because packing can take minutes."""
        sys.stderr.write(f"farcall: packages: {text}, {self._sent / 1e6:.1f} MB sent\n")
        sys.stderr.flush()

    def _note(self, size: int) -> None:
        self._sent += size


async def _pack(
    items: Sequence[Item], package_set: Environment, upload: _Upload | None = None
) -> dict[str, Packed]:
    """Pack several distributions at a time; upload each before its archive is deleted."""
    loop = asyncio.get_running_loop()
    await asyncio.to_thread(filesystem.remove_folders, _FOLDER)  # of killed processes
    folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{filesystem.identity(os.getpid())}-"))
    threads = ThreadPoolExecutor(max(2, os.cpu_count() or 1), "farcall-packages")
    done: dict[str, Packed] = {}

    async def pack(item: Item) -> None:
        packed, archive = await loop.run_in_executor(threads, environment.pack, item, folder)
        try:
            if upload is not None:
                await upload.add(packed, archive)
        finally:
            archive.path.unlink(missing_ok=True)
        done[item.name] = packed

    async def log_progress() -> None:
        await asyncio.sleep(_FIRST_S)
        while upload is not None:
            upload.report(f"{len(done)} of {counted(len(items), 'distribution')}")
            await asyncio.sleep(_NEXT_S)

    telling = asyncio.ensure_future(log_progress())
    packing: list[asyncio.Task[None]] = []
    try:
        here = await loop.run_in_executor(
            threads, environment.fetch, items, package_set.target, folder
        )
        packing = [asyncio.ensure_future(pack(each)) for each in _largest_first(here)]
        await asyncio.gather(*packing)
    finally:
        for each in (telling, *packing):
            each.cancel()
        await asyncio.gather(telling, *packing, return_exceptions=True)
        threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(_clean_up, threads, folder)
    return done


def _clean_up(threads: ThreadPoolExecutor, folder: Path) -> None:
    threads.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


def _largest_first(items: Sequence[Item]) -> list[Item]:
    """Return distributions, largest first, so that the last one does not take long."""
    return sorted(items, key=lambda item: -item.found.record_bytes if item.found else 0)


# --- farcall's runtime, for jobs whose image contains only Python --------------------------------


class Runtimes:
    """Uploader of the runtime that jobs download; checks once an hour that it exists."""

    def __init__(self, backend: Submissions, access: Access) -> None:
        self._backend = backend
        self._access = access
        self._storing: dict[tuple[str, str, Target], tuple[float, asyncio.Future[str]]] = {}

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
        place = store.bucket, prefix, target
        at, storing = self._storing.get(place, (0.0, None))
        if storing is None or _failed(storing) or clock.now() - at > _LISTED_S:
            storing = asyncio.ensure_future(_store_runtime(store, prefix, target))
            self._storing[place] = clock.now(), storing
        key = await asyncio.shield(storing)
        return _runtime(self._access, store.bucket, key, target)

    def forget(self) -> None:
        """Check the archive again before the next submission, because a job has failed."""
        self._storing.clear()


async def planned_runtime(
    backend: Submissions, access: Access, settings: Settings, root: str, *, offline: bool
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
        (sha256, _), _ = await asyncio.to_thread(runtime_archive.seal, target, Path(folder))
    key = f"{runtime_prefix(root)}{sha256}"
    return _runtime(access, settings.s3_bucket_name, key, target)


async def _store_runtime(store: Store, prefix: str, target: Target) -> str:
    """Ensure that the bucket will contain the archive for long enough; return its key."""
    with tempfile.TemporaryDirectory(prefix="farcall-runtime-") as folder:
        (sha256, size), make = await asyncio.to_thread(runtime_archive.seal, target, Path(folder))
        if await packages.verify(store, prefix, sha256, size):
            return f"{prefix}{sha256}"
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
