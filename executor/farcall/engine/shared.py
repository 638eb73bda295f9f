"""Shared values: large parts of functions and arguments, stored once per session.

A value is stored with the first bundle that refers to it, under a unique name (its generation)
that only this session's bundles contain. So only this session deletes it: an hour after its last
bundle has finished, or when the session ends; a value that the user has put stays until the user
discards it. A bundle has finished when it was deleted, so a bundle that is kept because of a
failed task keeps its values. The bucket's lifecycle rule deletes what a killed client has left.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from farcall.engine.upload_report import reported
from farcall.model.errors import FarcallError
from farcall.model.timing import Timing
from farcall.payload.shared import Piece
from farcall.storage.packages import FRESH
from farcall.storage.store import Store
from farcall.storage.transfers import SINGLE_PUT_BYTES
from farcall_runtime.contract import Location
from farcall_runtime.envelope import Buffer

_log = logging.getLogger("farcall")

_AHEAD = 4
"""Maximum values of a bundle that are uploaded while its next ones are pickled."""

_SMALL_AT_ONCE = 4
_STEP_BYTES = 8 * 1024 * 1024


@dataclass(eq=False)
class _Value:
    """A value that this session has used.

    Attributes:
        store: The bucket.
        root: Key prefix of any run below the value's prefix.
        sha256: Its digest in hexadecimal.
        generation: The upload that new bundles name; empty if there is none.
        generations: All uploads, which older bundles may name.
        stored_at: Time of the last upload, in seconds since 1970.
        used_at: Time of the last use, in seconds since 1970.
        is_doubted: Whether a container may have missed it.
        pins: Number of times that the user has put it.
        users: Bundles that refer to it, including those being built.
        lock: Held while it is stored or deleted.
    """

    store: Store
    root: str
    sha256: str
    generation: str = ""
    generations: list[str] = field(default_factory=list)
    stored_at: float = 0.0
    used_at: float = 0.0
    is_doubted: bool = False
    pins: int = 0
    users: set[object] = field(default_factory=set)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_free(self) -> bool:
        """Whether it has no references."""
        return not self.pins and not self.users

    @property
    def keys(self) -> list[str]:
        """Keys of all uploads."""
        return [self.key_of(generation) for generation in self.generations]

    def key_of(self, generation: str) -> str:
        """Return the key of an upload."""
        return Location(self.store.bucket, self.root, "").shared_key(self.sha256, generation)

    def add_generation(self) -> str:
        """Return the name of the next upload."""
        generation = secrets.token_hex(16)
        self.generations.append(generation)  # even an interrupted upload must be deleted
        return generation


class Use:
    """One bundle's references to shared values, called in a thread with each value."""

    def __init__(self, values: SharedValues, store: Store, root: str) -> None:
        self._values = values
        self._store = store
        self._root = root
        self._loop = asyncio.get_running_loop()
        self._places = threading.BoundedSemaphore(_AHEAD)
        self._running: list[Future[str]] = []
        self._is_confirmed = False

    def __call__(self, piece: Piece) -> Future[str]:
        """Ensure that the bucket has a value; wait if several are being uploaded.

        Returns:
            A future of its generation.
        """
        self._places.acquire()
        holding = self._values.hold(self._store, self._root, piece, self)
        future = asyncio.run_coroutine_threadsafe(holding, self._loop)
        future.add_done_callback(lambda _: self._places.release())
        self._running.append(future)
        return future

    @property
    def is_empty(self) -> bool:
        """Whether the bundle refers to no shared values."""
        return not (self._running or self._is_confirmed)

    async def confirm(self, named: Mapping[str, Sequence[Any]]) -> None:
        """Retain the values of an earlier bundle; see `SharedValues.confirm`."""
        self._is_confirmed = bool(named)
        await self._values.confirm(self._store, self._root, named, self)

    def doubt(self) -> None:
        """Check the values before their next use, because a container may have missed one."""
        self._values.doubt(self)

    def release(self) -> None:
        """Record that no job will read the bundle any more."""
        for future in self._running:
            future.cancel()
        self._values.release(self)


class SharedValues:
    """The shared values of one session."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._values: dict[tuple[Store, str, str], _Value] = {}
        self._large = asyncio.Semaphore(1)  # each one uploads several parts at a time
        self._small = asyncio.Semaphore(_SMALL_AT_ONCE)
        # Separate from the event loop's pool, which bundles that wait for values may fill.
        self._threads: ThreadPoolExecutor | None = None
        self._tidying: asyncio.Future[None] | None = None

    def use(self, store: Store, root: str) -> Use:
        """Begin a bundle."""
        return Use(self, store, root)

    async def pin(self, store: Store, root: str, pieces: Sequence[Piece]) -> None:
        """Retain values that the user puts, until `discard` or the session's end.

        Raises:
            Exception: See `hold`; in this case none of the values is retained.
        """
        values = [self._at(store, root, piece.sha256) for piece in pieces]
        for value in values:
            value.pins += 1
        holding = [asyncio.ensure_future(self.hold(store, root, each, None)) for each in pieces]
        try:
            await asyncio.gather(*holding)
        except BaseException:
            for each in holding:
                each.cancel()
            await asyncio.gather(*holding, return_exceptions=True)
            for value in values:
                value.pins -= 1
            raise

    async def hold(self, store: Store, root: str, piece: Piece, user: object) -> str:
        """Ensure that the bucket has a value; return its generation.

        Args:
            store: The bucket.
            root: Key prefix of the run.
            piece: The value.
            user: The value's user until `release`; None if the user has put it.

        Raises:
            FarcallError: The value is not in the bucket and its bytes are not in this process, or
                they were changed.
            SettingsError: The bucket does not exist.
            ServiceError: S3 refused a request or could not be reached.
        """
        value = self._at(store, root, piece.sha256)
        if user is not None:
            value.users.add(user)
        if self._tidying is None or self._tidying.done():
            self._tidying = asyncio.ensure_future(self._tidy())
        async with value.lock:
            value.used_at = time.time()
            is_old = time.time() - value.stored_at > FRESH.total_seconds()
            if value.generation and (value.is_doubted or is_old):
                await self._check(value, piece.size, is_old=is_old)
            if not value.generation:
                async with self._large if piece.size > SINGLE_PUT_BYTES else self._small:
                    await self._store(value, piece)
            return value.generation

    async def _check(self, value: _Value, size: int, *, is_old: bool) -> None:
        """Forget the value's upload if it was deleted; copy it if it is old."""
        if not await _is_stored(value, value.generation, size):
            value.generation = ""
        elif is_old:
            stored_at, generation = time.time(), value.add_generation()
            await value.store.copy(value.key_of(value.generation), value.key_of(generation))
            value.generation, value.stored_at = generation, stored_at
        value.is_doubted = False

    async def _store(self, value: _Value, piece: Piece) -> None:
        if piece.data is None:
            raise _missing(value)
        stored_at, generation = time.time(), value.add_generation()
        key = value.key_of(generation)
        _log.info(
            "storing a shared value, %.1f MB, as s3://%s/%s",
            *(piece.size / 1e6, value.store.bucket, key),
        )
        async with reported("a shared value", piece.size) as record:
            pieces = _checked(piece, piece.data)
            await value.store.put(key, pieces, on_sent=record, run=self._in_thread)
        value.generation, value.stored_at = generation, stored_at

    async def confirm(
        self, store: Store, root: str, named: Mapping[str, Sequence[Any]], user: object
    ) -> None:
        """Check the generations named by a bundle whose calls run again, and retain own ones.

        Args:
            store: The bucket.
            root: Key prefix of the run that submits it.
            named: Generation and size in bytes of each value, by its SHA-256 in hexadecimal.
            user: The values' user until `release`.

        Raises:
            FarcallError: A value was deleted.
            SettingsError: The bucket does not exist.
            ServiceError: S3 refused a request or could not be reached.
        """
        for sha256, (generation, size) in named.items():
            value = self._at(store, root, bytes.fromhex(sha256))
            value.users.add(user)
            async with value.lock:
                value.used_at = time.time()
                if not await _is_stored(value, generation, size):
                    raise _missing(value)

    def release(self, user: object) -> None:
        """Record that a user no longer needs values; they stay for a while."""
        for value in self._values.values():
            if user in value.users:
                value.users.discard(user)
                value.used_at = time.time()

    def doubt(self, user: object) -> None:
        """Check a user's values before their next use, because a container missed one."""
        for value in self._values.values():
            if user in value.users:
                value.is_doubted = True

    async def discard(self, store: Store, root: str, digests: Iterable[bytes]) -> None:
        """Release values that the user has put; jobs keep those that they need.

        Raises:
            SettingsError: The bucket does not exist.
            ServiceError: S3 refused a request or could not be reached.
        """
        for sha256 in digests:
            value = self._values.get((store, root, sha256.hex()))
            if value is not None:  # otherwise the session is closed
                value.pins = max(0, value.pins - 1)
                await self._release(value)

    async def close(self) -> None:
        """Delete the values without a bundle.

        Raises:
            SettingsError: The bucket does not exist.
            ServiceError: S3 refused a request or could not be reached.
        """
        if self._tidying is not None:
            self._tidying.cancel()
            await asyncio.gather(self._tidying, return_exceptions=True)
        free = [value for value in self._values.values() if not value.users]
        self._values.clear()
        try:
            for store in {value.store for value in free}:
                await store.delete(
                    [k for value in free if value.store is store for k in value.keys]
                )
        finally:
            if self._threads is not None:
                self._threads.shutdown(wait=False)

    def _at(self, store: Store, root: str, sha256: bytes) -> _Value:
        digest = sha256.hex()
        return self._values.setdefault((store, root, digest), _Value(store, root, digest))

    async def _release(self, value: _Value) -> None:
        """Delete a value without references."""
        async with value.lock:
            if value.is_free:
                value.generation = ""  # a concurrent user waits for the lock, and stores it again
                await value.store.delete(value.keys)
                value.generations.clear()
            if value.is_free:
                self._values.pop((value.store, value.root, value.sha256), None)

    async def _tidy(self) -> None:
        """Delete long unused values, while there are values."""
        kept_s = self._timing.shared_kept_s
        while self._values:
            await asyncio.sleep(kept_s / 2)
            for value in list(self._values.values()):
                if (
                    value.is_free
                    and not value.lock.locked()
                    and time.time() - value.used_at > kept_s
                ):
                    try:
                        await self._release(value)
                    except FarcallError as error:
                        _log.debug("a shared value was not deleted: %s", error)

    async def _in_thread(self, function: Any, *args: Any) -> Any:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_SMALL_AT_ONCE + 1, "farcall-shared")
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)


async def _is_stored(value: _Value, generation: str, size: int) -> bool:
    entry = await value.store.head(value.key_of(generation))
    return entry is not None and entry.size == size


def _missing(value: _Value) -> FarcallError:
    folder = value.key_of("")
    return FarcallError(
        f"a shared value is no longer at s3://{value.store.bucket}/{folder}, and this "
        "process does not have its data; put it again, and find out who deletes objects there: "
        "lifecycle rules must keep them for 30 days"
    )


def _checked(piece: Piece, data: Buffer) -> Iterator[bytes]:
    """Yield copies of a value's bytes, and verify their digest.

    Raises:
        FarcallError: The digest does not match. Nothing is stored then, because the error is
            raised before the end.
    """
    digest = hashlib.sha256()
    for start in range(0, len(data), _STEP_BYTES):
        step = bytes(data[start : start + _STEP_BYTES])
        digest.update(step)
        yield step
    if digest.digest() != piece.sha256:
        raise FarcallError(
            f"an argument of {piece.size} bytes was changed while it was being sent; do not "
            "change arrays until the calls are submitted, or pass a copy"
        )
