"""Cache: results of earlier calls of a function, which are not computed again.

The results of a function are below ``<prefix>/v1/cache/<function>-<digest>/``. The digest stands
for everything that may change a result, except the arguments: the code, the packages and the
Python version. A client lists this folder, and fetches the packs of results that it does not have
yet, so thousands of results take a few requests.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import pickletools
import re
import secrets
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from farcall.config.cache_keys import cache_key
from farcall.config.settings import Settings
from farcall.engine.delivered import Delivered, Reader, Wanted
from farcall.engine.packages import TaskPackages
from farcall.engine.tracked_job import Completion
from farcall.engine.worker_threads import WorkerThreads
from farcall.model import clock
from farcall.model.errors import FarcallError
from farcall.model.failure_reasons import About
from farcall.model.submission import Submission
from farcall.payload import results
from farcall.payload.pickling import Packed
from farcall.payload.results import Result
from farcall.payload.spill import in_memory
from farcall.storage.cache_packs import Entry, Place, open_pack, seal
from farcall.storage.store import Arrived, Store, Stores
from farcall_runtime import envelope
from farcall_runtime.contract import STREAMS, OutcomeStatus, run_root
from farcall_runtime.envelope import Buffer

_log = logging.getLogger("farcall")

FOLDER = "cache"
"""Folder of all cached results, next to the runs."""

PACK = re.compile(r"\d{8}T\d{6}-(\d{1,9})-[0-9a-f]{16}")
"""Name of a pack: when it was stored, and how many results it contains."""

_MOST_NAME = 60
_SMALL_BYTES = 64 * 1024
"""Maximum size of a value in a pack; larger ones are objects of their own."""

_FULL_PACK_BYTES = 4 * 1024 * 1024
_LARGEST_PACK_BYTES = 2 * _FULL_PACK_BYTES + _SMALL_BYTES
_MOST_PACKS = 1000
_MANY_PACKS = 8
"""Packs that are not full, from which on they are merged."""

_AT_ONCE = 16
_FRESH_S = 10.0
"""Seconds for which the folder is not listed again."""

_FLUSH_S = 5.0
"""Seconds after a result in which it is stored, together with others."""

_RECORD = ("first", "count", "status", "node", "wall_s", "cpu_s")
_LARGEST_SEARCHED_BYTES = 1024 * 1024


class Cache:
    """Cached results of one session.

    Args:
        stores: The buckets.
        packages: Packages of tasks.
        threads: Threads for work that would block the event loop.
    """

    def __init__(self, stores: Stores, packages: TaskPackages, threads: WorkerThreads) -> None:
        self._stores = stores
        self._packages = packages
        self._threads = threads
        self._known: dict[tuple[str, str, bytes], CachedResults] = {}

    async def of(self, settings: Settings, name: str, function: Packed) -> CachedResults:
        """Return the up-to-date cached results of a function.

        Args:
            settings: Options of the job.
            name: Name of the function.
            function: The pickled function, with the digest of its code.

        Raises:
            SettingsError: The key cannot be read, or packages are missing.
            ServiceError: S3 refused.
        """
        packages = await self._threads.run(self._packages.names, settings)
        facts = [sys.version_info[:2], settings.image, packages, settings.variables]
        text = json.dumps(facts, sort_keys=True).encode()
        digest = hashlib.sha256(text + function.code).hexdigest()
        plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:_MOST_NAME]
        folder = f"{run_root(settings.prefix, FOLDER)}/{plain or 'function'}-{digest[:40]}/"
        key = cache_key(settings)
        place = settings.s3_bucket_name, folder, key
        if place not in self._known:
            store = self._stores.of(settings.s3_bucket_name)
            self._known[place] = CachedResults(store, folder, key, self._threads)
        cached = self._known[place]
        await cached.load()
        return cached

    async def close(self) -> None:
        """Store the results that were not stored yet."""
        await asyncio.gather(*(each.flush() for each in self._known.values()))


class CachedResults:
    """Cached results of one function.

    Args:
        store: The bucket.
        folder: Key prefix of the function's objects, with the trailing slash.
        key: The user's key.
        threads: Threads for large values.
    """

    def __init__(self, store: Store, folder: str, key: bytes, threads: WorkerThreads) -> None:
        self._store = store
        self._folder = folder
        self._key = key
        self._threads = threads
        self._entries: dict[bytes, Entry] = {}
        self._packs: set[str] = set()  # that were read or written
        self._values: dict[str, int] = {}
        self._listed_at: float | None = None
        self._loading = asyncio.Lock()
        self._open: dict[bytes, Entry] = {}  # results of the pack that is being written
        self._replaced: list[str] = []  # packs whose results it contains
        self._is_changed = False
        self._flushing = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._flush: asyncio.Task[None] | None = None

    async def load(self) -> None:
        """Read the packs that other clients have stored.

        Raises:
            ServiceError: S3 refused.
        """
        async with self._loading:
            now = clock.now()
            if self._listed_at is not None and now - self._listed_at < _FRESH_S:
                return
            listed = dict(await self._store.list_keys(self._folder))
            self._values = {key: size for key, size in listed.items() if "/large/" in key}
            names = [key.removeprefix(self._folder) for key in listed]
            packs = sorted(name for name in names if PACK.fullmatch(name))[-_MOST_PACKS:]
            unread = [name for name in packs if name not in self._packs]
            places = asyncio.Semaphore(_AT_ONCE)
            opened = await asyncio.gather(*(self._read(name, places) for name in unread))
            for entries in opened:
                self._entries.update(entries)
            self._listed_at = now
            small = [
                (name, entries)
                for name, entries in zip(unread, opened, strict=True)
                if entries and listed[self._folder + name] < _FULL_PACK_BYTES
            ]
            if len(small) > _MANY_PACKS:
                self._merge(small)

    async def _read(self, name: str, places: asyncio.Semaphore) -> dict[bytes, Entry]:
        """Return the results in a pack; none if it is gone, or is not this user's."""
        self._packs.add(name)
        try:
            async with places:
                dated = await self._store.get_dated(self._folder + name, most=_LARGEST_PACK_BYTES)
            return {} if dated is None else open_pack(self._key, self._folder, dated[0])
        except (envelope.EnvelopeError, ValueError, TypeError) as error:
            _log.warning(
                "s3://%s/%s%s was not used: %s. If a team shares a cache, set the same cache_key",
                *(self._store.bucket, self._folder, name, error),
            )
            return {}

    def _merge(self, packs: Iterable[tuple[str, Mapping[bytes, Entry]]]) -> None:
        size = _size(self._open.values())
        for name, entries in packs:
            size += _size(entries.values())
            if size > _FULL_PACK_BYTES:
                break
            self._open.update(entries)
            self._replaced.append(name)
        self._note_change()

    # --- hits ---------------------------------------------------------------------------------

    def find(self, arguments: Packed) -> tuple[bytes, Entry | None]:
        """Return the digest of a task's calls, and their cached result, if there is one."""
        content = arguments.identity or arguments.sha256
        digest = hashlib.sha256(arguments.code + content).digest()
        entry = self._entries.get(digest)
        if entry is None:
            _warn_of_sets(arguments)
        elif entry.place is not None and not self._is_there(entry.place):
            entry = None
        return digest, entry

    def _is_there(self, place: Place) -> bool:
        return all(
            self._values.get(place.key(self._folder, number)) == size
            for number, size in enumerate(place.sizes())
        )

    async def fetch(self, entry: Entry, name: str, wanted: Wanted) -> Delivered:
        """Return a cached result as an outcome, without output.

        Raises:
            EnvelopeError: The value is gone, or is not the one that was cached.
            ServiceError: S3 refused.
            NoRoomError: ``cache_dir`` has no room.
        """
        value = entry.value
        if entry.place is not None:
            value = await self._fetch_large(entry.place, wanted)
        streams: dict[str, Any] = {stream: {} for stream in STREAMS}
        meta = {"status": OutcomeStatus.DONE, "results": entry.records, **streams}
        read = partial(wanted.read, meta, value, About("", name))
        return Delivered(read() if entry.place is None else await self._threads.run(read))

    async def _fetch_large(self, place: Place, wanted: Wanted) -> Buffer:
        if place.total:
            data = await self._store.get_part(
                place.key(self._folder), place.offset, place.size, place.total
            )
            digest = "" if data is None else await self._threads.run(_sha256, data)
        else:
            folder = (wanted.folder_for or in_memory)(place.size)
            key = partial(place.key, self._folder)
            data, digest = await self._store.get_large(key, place.size, folder) or (None, "")
        if data is None or digest != place.sha256:
            raise envelope.IntegrityError(
                f"s3://{self._store.bucket}/{place.key(self._folder)} differs from the cached "
                "result"
            )
        return data

    # --- new results --------------------------------------------------------------------------

    def add(self, digest: bytes, entry: Entry) -> None:
        """Add a result, which is stored within seconds."""
        self._entries[digest] = self._open[digest] = entry
        self._note_change()

    async def copy(self, keys: list[str], place: Place) -> None:
        """Copy the objects of a large value into the folder."""
        sizes = place.sizes()
        for number, key in enumerate(keys):
            to = place.key(self._folder, number)
            await self._store.copy(key, to)
            self._values[to] = sizes[number]

    def _note_change(self) -> None:
        self._is_changed = True
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_FLUSH_S, self._start_flush)

    def _start_flush(self) -> None:
        self._timer = None
        self._flush = asyncio.ensure_future(self.flush())

    async def flush(self) -> None:
        """Store the results that were not stored yet; a failure is logged."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        async with self._flushing:
            if not self._is_changed:
                return
            self._is_changed = False
            entries, replaced = dict(self._open), self._replaced
            data = await self._threads.run(seal, self._key, self._folder, entries)
            moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
            name = f"{moment}-{len(entries)}-{secrets.token_hex(8)}"
            self._packs.add(name)
            try:
                await self._store.put(self._folder + name, [data], quick=True)
            except FarcallError as error:
                self._is_changed = True
                _log.warning("results were not cached: %s", error)
                return
            self._store.delete_later(self._folder + each for each in replaced)
            self._replaced = [name]
            if len(data) >= _FULL_PACK_BYTES:
                self._replaced = []
                for digest in entries:
                    del self._open[digest]


class Keep:
    """Caches the result of one task when it arrives.

    Args:
        cached: The function's cached results.
        digest: Digest of the task's calls.
    """

    def __init__(self, cached: CachedResults, digest: bytes) -> None:
        self._cached = cached
        self._digest = digest
        self._outcome: tuple[Mapping[str, Any], Buffer] | None = None

    def reading(self, read: Reader) -> Reader:
        """Return a reader that also notes the values."""

        def note(meta: dict[str, Any], value: Buffer, job: About) -> list[Result]:
            if results.is_success(meta):
                self._outcome = meta, value
            return read(meta, value, job)

        return note

    async def store(
        self, submission: Submission, index: int, end: Completion, delivered: Delivered
    ) -> None:
        """Cache the result, unless a call failed; a failure to do so is logged."""
        outcome, self._outcome = self._outcome, None
        if outcome is None or any(result.error is not None for result in delivered.results):
            return
        meta, value = outcome
        records = [_record(each) for each in meta["results"]]
        if "value" not in meta and len(value) <= _SMALL_BYTES:
            self._cached.add(self._digest, Entry(records, bytes(value)))
            return
        try:
            place = await self._copy(submission, index, end, meta, value)
        except FarcallError as error:
            _log.warning("the result of %s was not cached: %s", submission.id_of(index), error)
        else:
            self._cached.add(self._digest, Entry(records, place=place))

    async def _copy(
        self,
        submission: Submission,
        index: int,
        end: Completion,
        meta: Mapping[str, Any],
        value: Buffer,
    ) -> Place:
        """Copy a large value within the bucket."""
        name, where = secrets.token_hex(16), submission.where
        if "value" in meta:
            place = Place(name, meta["value"]["size"], meta["value"]["sha256"])
            attempt = int(meta["attempt"])
            parts = range(len(place.sizes()))
            keys = [where.value_key(index, attempt, part) for part in parts]
        else:
            digest = await self._cached._threads.run(_sha256, value)
            total = end.size if isinstance(end, Arrived) else 0
            place = Place(name, len(value), digest, total - len(value), total)
            keys = [where.outcome_key(index)]
        await self._cached.copy(keys, place)
        return place


def _record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is kept of a call's description; nodes are a Covalent task group's."""
    kept = {name: record[name] for name in _RECORD if name in record}
    if "nodes" in record:
        kept["nodes"] = [{**_record(each), "began": [0, 0]} for each in record["nodes"]]
    return kept


def _size(entries: Iterable[Entry]) -> int:
    return sum(256 + len(entry.value) for entry in entries)


def _sha256(data: Buffer) -> str:
    return hashlib.sha256(data).hexdigest()


_has_warned = False


def _warn_of_sets(arguments: Packed) -> None:
    """Warn once of a set of texts in arguments, whose order differs in each process."""
    global _has_warned
    if _has_warned or arguments.size > _LARGEST_SEARCHED_BYTES or arguments.shared:
        return
    data = b"".join(arguments.pieces)
    if b"\x8f" not in data and b"\x91" not in data:  # EMPTY_SET, FROZENSET
        return
    names = {opcode.name for opcode, _, _ in pickletools.genops(bytes(envelope.unpack(data)[0]))}
    if not names.isdisjoint(("EMPTY_SET", "FROZENSET")) and any("UNICODE" in n for n in names):
        _has_warned = True
        _log.warning(
            "an argument contains a set of texts, whose order differs in each process, so its "
            "calls are computed again. With the option cache, pass a sorted list"
        )
