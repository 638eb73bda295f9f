"""Shared values of one session: which it holds in the bucket, for which bundles, and until when.

A value is held from the first bundle that refers to it on. It is let go an hour after the last one
was through, or when the session ends, unless it was put by the user: then when that is taken back.
A bundle is through when it was deleted, so one that was kept, because a task of it failed, keeps
its values; `farcall.storage.shared` tells what becomes of them then.
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
"""Values of a bundle that are on their way, while its next ones are pickled."""

_SMALL_AT_ONCE = 4
_PARALLEL = 16

_STRANGERS = 100
"""Values of others that are looked at once in a session, whether nobody holds them any more."""


@dataclass(eq=False)
class _Value:
    """A value that this session has used.

    Attributes:
        store: The bucket.
        place: Where it lies there.
        generation: Which upload of it bundles name; empty where none is known to be there.
        marked_at: When the marker was last stored, by two clocks.
        used_at: When it was last of use, in the same way.
        pins: How often the user has put it.
        users: Those that refer to it: bundles, and what is becoming one.
        lock: Held while it is stored or let go.
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
        """Whether nothing refers to it."""
        return not self.pins and not self.users


class Use:
    """What one bundle refers to; it is called, in a thread, with each value."""

    def __init__(self, values: SharedValues, store: Store, root: str) -> None:
        self._values = values
        self._store = store
        self._root = root
        self._loop = asyncio.get_running_loop()
        self._places = threading.BoundedSemaphore(_AHEAD)
        self._under_way: list[Future[str]] = []

    def __call__(self, piece: Piece) -> Future[str]:
        """See to it that a value is in the bucket; wait where several are on their way already.

        Returns:
            Its generation, to come.
        """
        self._places.acquire()
        holding = self._values.hold(self._store, self._root, piece, self)
        future = asyncio.run_coroutine_threadsafe(holding, self._loop)
        future.add_done_callback(lambda _: self._places.release())
        self._under_way.append(future)
        return future

    def note_submitted(self, where: Location) -> None:
        """Note that a job may have the bundle, which keeps the values from now on."""
        if self._under_way:
            self._values.note_submitted(self, where)

    def release(self) -> None:
        """Note that no job will ever ask for the bundle."""
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
        self._large = asyncio.Semaphore(1)  # each has several parts on their way
        self._small = asyncio.Semaphore(_SMALL_AT_ONCE)
        # Not the event loop's own, which bundles may take up, all of them waiting for values.
        self._threads: ThreadPoolExecutor | None = None
        self._renewing: asyncio.Future[None] | None = None
        self._sweeping: dict[tuple[Store, str], asyncio.Future[None]] = {}

    def use(self, store: Store, root: str) -> Use:
        """Begin a bundle."""
        return Use(self, store, root)

    async def pin(self, store: Store, root: str, pieces: Sequence[Piece]) -> None:
        """Hold values that the user puts, until `discard` or the session's end.

        Raises:
            Exception: As of `hold`; then none of them is held.
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
        """See to it that a value is in the bucket; return its generation.

        Args:
            store: The bucket.
            root: Key prefix of the run.
            piece: The value.
            user: For whom it is held until `release`; None where the user has put it.

        Raises:
            FarcallError: It is not there, and its bytes are not here; or they were changed.
            SettingsError: There is no such bucket.
            ServiceError: S3 refused or could not be reached.
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
        """Hold the very generations that a bundle names whose calls are to run again.

        Args:
            store: The bucket.
            root: Key prefix of the run that submits it.
            named: Generation and bytes of each, by its SHA-256, hexadecimal.
            user: For whom it is held until `release`.

        Raises:
            FarcallError: One of them is gone, or may be deleted at any moment.
            SettingsError: There is no such bucket.
            ServiceError: S3 refused or could not be reached.
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

    def note_submitted(self, use: Use, where: Location) -> None:
        """Note which bundle it became; see `Use`."""
        self._bundles[where.bundle_key] = use

    def note_deleted(self, where: Location) -> None:
        """Note that a bundle was deleted, for all of its tasks were delivered."""
        use = self._bundles.pop(where.bundle_key, None)
        if use is not None:
            self.release(use)

    def release(self, user: object) -> None:
        """Note that somebody needs values no longer; they stay for a while."""
        for value in self._values.values():
            if user in value.users:
                value.users.discard(user)
                value.used_at = _now()

    def forget(self, where: Location) -> None:
        """Look again before they are used whether the values of a bundle are there.

        A container has missed one.
        """
        use = self._bundles.get(where.bundle_key)
        for value in self._values.values():
            if use in value.users:
                value.generation = ""

    async def discard(self, store: Store, root: str, digests: Iterable[bytes]) -> None:
        """Let values go that the user has put; what jobs still need stays until they are through.

        Raises:
            SettingsError: There is no such bucket.
            ServiceError: S3 refused or could not be reached.
        """
        for sha256 in digests:
            place = SharedPlace(f"{shared_prefix(root)}{sha256.hex()}")
            value = self._values.get((store, place))
            if value is not None:  # else the session is closed
                value.pins = max(0, value.pins - 1)
                await self._let_go(value)

    async def close(self) -> None:
        """Let go what no bundle refers to any more; markers of the others stay."""
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
        """Take the marker away, and delete the value where nobody else has one."""
        async with value.lock:
            if not value.is_free:
                return
            # Whoever comes meanwhile waits for the lock, and stores a marker again.
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
        """Renew markers, and let go what was of no use for long, for as long as there is some."""
        while self._values:
            await asyncio.sleep(self._timing.shared_mark_s / 2)
            for value in list(self._values.values()):
                if not value.lock.locked():  # what is being stored has a new one
                    await self._quietly(self._renew_one(value))

    async def _renew_one(self, value: _Value) -> None:
        if value.is_free and _since(value.used_at) > self._timing.shared_kept_s:
            await self._let_go(value)
            return
        async with value.lock:
            marked_at = _now()
            if _since(value.marked_at) > shared.ABANDONED.total_seconds() / 2:
                value.generation = ""  # this machine has slept; it may have been deleted
            key = value.place.held_key(self._run)
            await value.store.put(key, [shared.MARK], quick=True)
            value.marked_at = marked_at

    async def _sweep(self, store: Store, prefix: str) -> None:
        """Delete what runs have left that were killed."""
        places = await shared.values_in(store, prefix)
        strangers = [each for each in places if (store, each) not in self._values]
        for place in strangers[:_STRANGERS]:
            if (store, place) not in self._values:
                await shared.collect(store, place)

    @staticmethod
    async def _quietly(work: Awaitable[None]) -> None:
        """Do what the next run can do as well."""
        try:
            await work
        except FarcallError as error:
            _log.debug("shared values: %s", error)


def _now() -> tuple[float, float]:
    """Return the time by two clocks: one stands while the machine sleeps, one is set by people."""
    return time.monotonic(), time.time()


def _since(then: tuple[float, float]) -> float:
    """Return how many seconds have gone by, by the clock that tells of more."""
    return max(now - before for now, before in zip(_now(), then, strict=True))
