"""Shared values of one session: the values in the bucket, and their retention.

A value is retained from the first bundle that refers to it. It is released an hour after its last
bundle has finished, or when the session ends; a value that the user has put is released when the
user discards it. A bundle has finished when it was deleted, so a bundle that is kept because of a
failed task retains its values. `farcall.storage.shared` describes how released values are deleted.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from farcall.model.errors import FarcallError
from farcall.model.timing import Timing
from farcall.payload.shared import Piece
from farcall.storage import shared
from farcall.storage.store import Store
from farcall.storage.transfers import SINGLE_PUT_BYTES
from farcall_runtime.contract import Location, SharedPlace, shared_prefix

_log = logging.getLogger("farcall")

_AHEAD = 4
"""Maximum values of a bundle that are uploaded while its next ones are pickled."""

_SMALL_AT_ONCE = 4
_PARALLEL = 16

_STRANGERS = 100
"""Maximum number of other sessions' values checked for release, once per session."""


@dataclass(eq=False)
class _Value:
    """A value that this session has used.

    Attributes:
        store: The bucket.
        place: The value's location in the bucket.
        generation: The upload that bundles name; empty if none is known to exist.
        marked_at: Time at which the marker was last stored, by two clocks.
        used_at: Time of the last use, by two clocks.
        pins: Number of times that the user has put it.
        users: Bundles that refer to it, including those being built.
        lock: Held while it is stored or released.
    """

    store: Store
    place: SharedPlace
    generation: str = ""
    marked_at: tuple[float, float] = (0.0, 0.0)
    used_at: tuple[float, float] = (0.0, 0.0)
    pins: int = 0
    users: set[object] = field(default_factory=set)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_free(self) -> bool:
        """Whether it has no references."""
        return not self.pins and not self.users


class Use:
    """One bundle's references to shared values, called in a thread with each value."""

    def __init__(self, values: SharedValues, store: Store, root: str) -> None:
        self._values = values
        self._store = store
        self._root = root
        self._loop = asyncio.get_running_loop()
        self._places = threading.BoundedSemaphore(_AHEAD)
        self._under_way: list[Future[str]] = []

    def __call__(self, piece: Piece) -> Future[str]:
        """Ensure that the bucket has a value; wait if several are being uploaded.

        Returns:
            A future of its generation.
        """
        self._places.acquire()
        holding = self._values.hold(self._store, self._root, piece, self)
        future = asyncio.run_coroutine_threadsafe(holding, self._loop)
        future.add_done_callback(lambda _: self._places.release())
        self._under_way.append(future)
        return future

    def record_submitted(self, where: Location) -> None:
        """Record that a job may have the bundle, which retains the values from now on."""
        if self._under_way:
            self._values.record_submitted(self, where)

    def release(self) -> None:
        """Record that no job will read the bundle."""
        for future in self._under_way:
            future.cancel()
        self._values.release(self)


class SharedValues:
    """The shared values that one session has used."""

    def __init__(self, run: str, timing: Timing) -> None:
        self._run = run
        self._timing = timing
        self._values: dict[tuple[Store, SharedPlace], _Value] = {}
        self._bundles: dict[str, Use] = {}
        self._large = asyncio.Semaphore(1)  # each one uploads several parts at a time
        self._small = asyncio.Semaphore(_SMALL_AT_ONCE)
        # Separate from the event loop's pool, which bundles that wait for values may fill.
        self._threads: ThreadPoolExecutor | None = None
        self._renewing: asyncio.Future[None] | None = None
        self._sweeping: dict[tuple[Store, str], asyncio.Future[None]] = {}

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
        async with value.lock:
            value.used_at = _now()
            if not value.generation or _since(value.marked_at) > self._timing.shared_mark_s:
                marked_at = _now()
                async with self._large if piece.size > SINGLE_PUT_BYTES else self._small:
                    value.generation = await shared.hold(
                        store, value.place, self._run, piece, thread=self._in_thread
                    )
                value.marked_at = marked_at
            generation = value.generation
        self._start(store, shared_prefix(root))
        return generation

    async def confirm(
        self, store: Store, root: str, named: Mapping[str, Sequence[Any]], user: object
    ) -> None:
        """Retain the exact generations named by a bundle whose calls run again.

        Args:
            store: The bucket.
            root: Key prefix of the run that submits it.
            named: Generation and size in bytes of each value, by its SHA-256 in hexadecimal.
            user: The values' user until `release`.

        Raises:
            FarcallError: A value was deleted, or may be deleted at any moment.
            SettingsError: The bucket does not exist.
            ServiceError: S3 refused a request or could not be reached.
        """
        for sha256, (generation, size) in named.items():
            value = self._at(store, root, bytes.fromhex(sha256))
            value.users.add(user)
            async with value.lock:
                value.used_at = marked_at = _now()
                await shared.confirm(store, value.place, self._run, generation, size)
                value.generation = value.generation or generation
                value.marked_at = marked_at
        if named:
            self._start(store, shared_prefix(root))

    def record_submitted(self, use: Use, where: Location) -> None:
        """Record the bundle that a use became; see `Use`."""
        self._bundles[where.bundle_key] = use

    def record_deleted(self, where: Location) -> None:
        """Record that a bundle was deleted, because all of its tasks were delivered."""
        use = self._bundles.pop(where.bundle_key, None)
        if use is not None:
            self.release(use)

    def release(self, user: object) -> None:
        """Record that a user no longer needs values; they stay for a while."""
        for value in self._values.values():
            if user in value.users:
                value.users.discard(user)
                value.used_at = _now()

    def forget(self, where: Location) -> None:
        """Check a bundle's values again before their next use: a container missed one."""
        use = self._bundles.get(where.bundle_key)
        for value in self._values.values():
            if use in value.users:
                value.generation = ""

    async def discard(self, store: Store, root: str, digests: Iterable[bytes]) -> None:
        """Release values that the user has put; jobs keep those that they need.

        Raises:
            SettingsError: The bucket does not exist.
            ServiceError: S3 refused a request or could not be reached.
        """
        for sha256 in digests:
            place = SharedPlace(f"{shared_prefix(root)}{sha256.hex()}")
            value = self._values.get((store, place))
            if value is not None:  # otherwise the session is closed
                value.pins = max(0, value.pins - 1)
                await self._let_go(value)

    async def close(self) -> None:
        """Release values without a bundle; markers of the others stay."""
        background = [self._renewing, *self._sweeping.values()]
        started = [each for each in background if each is not None]
        for each in started:
            each.cancel()
        await asyncio.gather(*started, return_exceptions=True)
        places = asyncio.Semaphore(_PARALLEL)

        async def let_go(value: _Value) -> None:
            value.pins = 0
            async with places:
                await self._let_go(value)

        try:
            await asyncio.gather(*map(let_go, list(self._values.values())))
        finally:
            self._values.clear()
            self._bundles.clear()
            self._sweeping.clear()
            if self._threads is not None:
                self._threads.shutdown(wait=False)

    def _at(self, store: Store, root: str, sha256: bytes) -> _Value:
        place = SharedPlace(f"{shared_prefix(root)}{sha256.hex()}")
        return self._values.setdefault((store, place), _Value(store, place))

    async def _let_go(self, value: _Value) -> None:
        """Delete the marker, and the value if no other session has a marker."""
        async with value.lock:
            if not value.is_free:
                return
            # A concurrent user waits for the lock, and then stores a marker again.
            value.generation = ""
            await shared.release(value.store, value.place, self._run)
            await shared.collect(value.store, value.place)
            if value.is_free:
                self._values.pop((value.store, value.place), None)

    async def _in_thread(self, function: Any, *args: Any) -> Any:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_SMALL_AT_ONCE + 1, "farcall-shared")
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    # --- in the background ----------------------------------------------------------------------

    def _start(self, store: Store, prefix: str) -> None:
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.ensure_future(self._renew())
        if (store, prefix) not in self._sweeping:
            sweeping = asyncio.ensure_future(self._quietly(self._sweep(store, prefix)))
            self._sweeping[store, prefix] = sweeping

    async def _renew(self) -> None:
        """Renew markers, and release long unused values, while there are values."""
        while self._values:
            await asyncio.sleep(self._timing.shared_mark_s / 2)
            for value in list(self._values.values()):
                if not value.lock.locked():  # a value that is being uploaded gets a new marker
                    await self._quietly(self._renew_one(value))

    async def _renew_one(self, value: _Value) -> None:
        if value.is_free and _since(value.used_at) > self._timing.shared_kept_s:
            await self._let_go(value)
            return
        async with value.lock:
            marked_at = _now()
            if _since(value.marked_at) > shared.ABANDONED.total_seconds() / 2:
                value.generation = ""  # the value may have been deleted while this machine slept
            key = value.place.held_key(self._run)
            await value.store.put(key, [shared.MARK], quick=True)
            value.marked_at = marked_at

    async def _sweep(self, store: Store, prefix: str) -> None:
        """Delete the values of killed runs."""
        places = await shared.values_in(store, prefix)
        strangers = [each for each in places if (store, each) not in self._values]
        for place in strangers[:_STRANGERS]:
            if (store, place) not in self._values:
                await shared.collect(store, place)

    @staticmethod
    async def _quietly(work: Awaitable[None]) -> None:
        """Do clean-up that the next run can also do; ignore errors."""
        try:
            await work
        except FarcallError as error:
            _log.debug("shared values: %s", error)


def _now() -> tuple[float, float]:
    """Return the time by two clocks: one stops during suspend, one can be set."""
    return time.monotonic(), time.time()


def _since(then: tuple[float, float]) -> float:
    """Return the elapsed seconds, by the clock with the larger difference."""
    return max(now - before for now, before in zip(_now(), then, strict=True))
