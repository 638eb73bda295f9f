"""Bundle reader: a submitted bundle's facts, and its tasks' arguments.

A bundle is trusted if the digest of its index matches the digest in Batch. Before that check, its
facts are only hints, and nothing of it is unpickled.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from farcall.model.errors import (
    FarcallError,
    IntegrityError,
    SharedMissingError,
    TaskNotPicklableError,
    VersionMismatchError,
)
from farcall.model.failure_reasons import About
from farcall.model.submission import Submission
from farcall.payload import call_texts, unpickling
from farcall.payload.bundle import FIXED
from farcall.payload.pickling import Call
from farcall.payload.shared import sha256
from farcall.storage.rereads import until_intact
from farcall.storage.store import Store, Stores
from farcall_runtime import envelope, failures
from farcall_runtime.contract import Location
from farcall_runtime.envelope import PAGE_ROWS, Buffer, Index, Part, Reference

_FIRST_READ_BYTES = 64 * 1024
"""Size in bytes of the first request: a small bundle, or a large one's index."""

_SMALL_BYTES = 256 * 1024
"""Maximum total size of small arguments in bytes.

Up to this size, the arguments of a page of rows are fetched together, and handled without a
thread, which would take longer.
"""

_PARALLEL = 8


async def queue_of(store: Store, where: Location) -> str:
    """Return the queue in a bundle's facts; only a hint, because it is not verified.

    Returns:
        Name or ARN; empty if the bundle has none, or does not exist.

    Raises:
        ServiceError: S3 refused.
    """
    try:
        tail = await _tail(store, where)
        if tail is None:
            return ""
        root = _root(tail)
        queue = Index(root, hashlib.sha256(root).hexdigest()).meta.get("queue")
    except envelope.EnvelopeError:
        return ""
    return queue if isinstance(queue, str) else ""


async def facts_of(store: Store, submission: Submission) -> dict[str, Any] | None:
    """Return a bundle's facts, as submitted.

    Returns:
        The facts; None if the bundle no longer exists.

    Raises:
        EnvelopeError: It is not the submitted bundle, or was written by another farcall.
        ServiceError: S3 refused.
    """

    async def read() -> dict[str, Any] | None:
        tail = await _tail(store, submission.where)
        return None if tail is None else Index(_root(tail), submission.digest).meta

    return await until_intact(read)


async def texts_of(store: Store, submission: Submission) -> list[str] | None:
    """Return the texts of each task's calls, as submitted; see `farcall.payload.call_texts`.

    Returns:
        A text for each task; None if the bundle no longer exists, or has no summaries.

    Raises:
        EnvelopeError: It is not the submitted bundle, or was written by another farcall.
        ServiceError: S3 refused.
    """
    return await until_intact(lambda: _texts_of(store, submission))


async def _texts_of(store: Store, submission: Submission) -> list[str] | None:
    tail = await _tail(store, submission.where)
    if tail is None:
        return None
    index = Index(_root(tail), submission.digest)
    part = index.texts()
    if part is None:
        return None
    start = part.offset - (index.end - len(tail))
    data: Buffer = memoryview(tail)[max(0, start) : max(0, start + part.length)]
    if start < 0:
        key = submission.where.bundle_key
        fetched = await store.get_part(key, part.offset, part.length, index.end)
        if fetched is None:
            return None
        data = fetched
    part.check(data)
    return call_texts.read(data, index.entries)


class BundleReader:
    """Reader of tasks' arguments on one event loop; it keeps bundles in use open."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._bundles: weakref.WeakKeyDictionary[Submission, Bundle]
        self._bundles = weakref.WeakKeyDictionary()

    async def read(self, submission: Submission, index: int) -> list[Call]:
        """Return a task's calls, as submitted.

        Args:
            submission: The task's job, as submitted or as described by Batch.
            index: Index of the task in the job.

        Raises:
            FarcallError: The bundle is no longer in the bucket.
            IntegrityError: It is not the one that was submitted.
            VersionMismatchError: It was written by another farcall, or another Python.
            TaskNotPicklableError: The arguments cannot be unpickled here.
            ServiceError: S3 refused.
        """
        about = About(submission.id_of(index), submission.name)
        where = submission.where

        async def fetch() -> tuple[Bundle, Buffer, Buffer, dict[Reference, Buffer]]:
            bundle = self._bundles.get(submission)
            if bundle is None:
                bundle = Bundle(self._stores.of(where.bucket), where, submission.digest)
                self._bundles[submission] = bundle
            try:
                _check_python(await bundle.index())
                data, function = await bundle.payload(index)
                return bundle, data, function, await bundle.shared([data, function])
            except envelope.IntegrityError:
                self._bundles.pop(submission, None)  # it has kept parts that are not intact
                raise

        try:
            bundle, data, function, shared = await until_intact(fetch)
        except envelope.VersionMismatchError as error:
            remedy = "use the same farcall and Python versions as for the submission"
            raise VersionMismatchError(
                about.message(str(error), remedy), **about.fields()
            ) from error
        except envelope.IntegrityError as error:
            sentence = f"{where.url} is not what was submitted ({error})"
            remedy = "find out who writes to the bucket"
            raise IntegrityError(about.message(sentence, remedy), **about.fields()) from error
        # In a thread, so that a `KeyboardInterrupt` comes from the arguments' code and not from
        # Ctrl-C.
        return await asyncio.to_thread(_unpickled, (data, function), shared, bundle.fixed, about)


def _unpickled(
    frames: tuple[Buffer, Buffer],
    shared: Mapping[Reference, Buffer],
    fixed: Sequence[str],
    about: About,
) -> list[Call]:
    """Unpickle a task's calls, with the keyword arguments that all calls share."""

    def find(wanted: Reference) -> Buffer:
        return bytearray(shared[wanted])  # a copy: changes stay separate

    try:
        data, function = frames
        calls: list[Call] = unpickling.load_pieces(envelope.unpack_shared(data, find))
        if fixed:
            known = unpickling.load_pieces(envelope.unpack_shared(function, find)).keywords
            same = {name: known[name] for name in fixed}
            calls = [(args, {**same, **kwargs}) for args, kwargs in calls]
    except BaseException as error:  # the arguments' own code
        sentence = f"the arguments cannot be unpickled here ({failures.in_words(error)})"
        raise TaskNotPicklableError(
            about.message(sentence, "install here the packages that their classes need")
        ) from error
    return calls


def _check_python(index: Index) -> None:
    """Reject a bundle pickled by another Python."""
    if index.python != sys.version_info[:2]:
        theirs, ours = (".".join(map(str, v)) for v in (index.python, sys.version_info[:2]))
        raise envelope.VersionMismatchError(
            f"the arguments were pickled by Python {theirs}, but this is Python {ours}"
        )


class _Page(NamedTuple):
    """The rows of some tasks, and their arguments if these are small together."""

    rows: Buffer
    start: int
    data: Buffer


class Bundle:
    """A submitted bundle, whose index is read once for all its tasks.

    Nothing of it is unpickled here, so another Python version may have created it.

    Args:
        store: The bucket.
        where: Its location.
        digest: SHA-256 of the root of its index, from Batch.
    """

    def __init__(self, store: Store, where: Location, digest: str) -> None:
        self._store = store
        self._where = where
        self._digest = digest
        self._lock = asyncio.Lock()
        self._places = asyncio.Semaphore(_PARALLEL)
        self._index: Index | None = None
        self._tail: Buffer = b""
        self._pages: dict[int, _Page] = {}
        self._functions: dict[int, Buffer] = {}

    @property
    def fixed(self) -> Sequence[str]:
        """Names of the keyword arguments that all calls share, after reading."""
        return self._index.meta.get(FIXED, ()) if self._index is not None else ()

    async def index(self) -> Index:
        """Return the verified root of its index.

        Raises:
            FarcallError: The bundle no longer exists.
            EnvelopeError: It differs from the submitted one.
            ServiceError: S3 refused.
        """
        async with self._lock:
            return await self._opened()

    async def _opened(self) -> Index:
        if self._index is None:
            self._index = await self._open()
        return self._index

    async def entry(self, number: int) -> tuple[Part, Buffer]:
        """Return the location of a task's arguments, and their bytes; see `index`.

        Returns:
            The part, which the caller must verify; its bytes, or none if they must be fetched.
        """
        async with self._lock:
            index, page = await self._page(number)
            entry = index.entry(number, page.rows)
        start = entry.offset - page.start
        return entry, page.data[start : start + entry.length]

    async def function(self, number: int) -> tuple[Part, Buffer]:
        """Return a function's part, for the caller to verify, and its bytes; see `index`."""
        index = await self.index()
        part = index.function(number)
        return part, await self._read(index, part)

    async def part(self, part: Part) -> Buffer:
        """Return the bytes of a part, which the caller must verify; see `index`."""
        return await self._read(await self.index(), part)

    async def payload(self, number: int) -> tuple[Buffer, Buffer]:
        """Return a task's verified arguments, and its function if calls share arguments.

        Raises:
            EnvelopeError: The bundle differs from the submitted one.
        """
        async with self._lock:
            index, page = await self._page(number)
            entry = index.entry(number, page.rows)
            if self.fixed and entry.function not in self._functions:
                part = index.function(entry.function)
                self._functions[entry.function] = await self._verified(index, part)
        start = entry.offset - page.start
        data = page.data[start : start + entry.length]
        function = self._functions.get(entry.function, b"")
        return await self._verified(index, entry, data), function

    async def shared(self, frames: Iterable[Buffer]) -> dict[Reference, Buffer]:
        """Return the verified values that frames of the bundle refer to.

        Raises:
            EnvelopeError: A value does not match its digest, or the index does not name it.
            FarcallError: A value no longer exists.
        """
        index = self._index
        wanted = {each for frame in frames if frame for each in envelope.references(frame)}
        if index is None or not wanted:
            return {}

        async def fetch(value: Reference) -> tuple[Reference, Buffer]:
            key = self._where.shared_key(value.sha256.hex(), index.shared(value))
            async with self._places:
                data = await self._store.get_part(key, 0, value.size, value.size)
            if data is None:
                raise self._missing(key)
            if await asyncio.to_thread(sha256, data) != value.sha256:
                raise envelope.IntegrityError(f"the content of {key} does not match its name")
            return value, data

        return dict(await asyncio.gather(*map(fetch, wanted)))

    async def _page(self, number: int) -> tuple[Index, _Page]:
        index = await self._opened()
        page = self._pages.get(number // PAGE_ROWS)
        if page is None:
            page = self._pages[number // PAGE_ROWS] = await self._turn_to(index, number)
        return index, page

    async def _verified(self, index: Index, part: Part, data: Buffer = b"") -> Buffer:
        if len(data) < part.length:
            async with self._places:
                data = await self._read(index, part)
        if part.length > _SMALL_BYTES:
            await asyncio.to_thread(part.check, data)
        else:
            part.check(data)
        return data

    async def _turn_to(self, index: Index, number: int) -> _Page:
        rows = await self._read(index, index.page(number))
        first = number - number % PAGE_ROWS
        last = index.entry(min(first + PAGE_ROWS, index.entries) - 1, rows)
        start = index.entry(first, rows).offset
        length = last.offset + last.length - start
        if length > _SMALL_BYTES:
            return _Page(rows, start, b"")
        return _Page(rows, start, await self._read(index, Part(start, length, b"")))

    async def _open(self) -> Index:
        tail = await _tail(self._store, self._where)
        if tail is None:
            raise self._missing()
        index = Index(_root(tail), self._digest)
        self._tail = tail
        return index

    async def _read(self, index: Index, part: Part) -> Buffer:
        start = part.offset - (index.end - len(self._tail))
        if start >= 0:
            return memoryview(self._tail)[start : start + part.length]
        key = self._where.bundle_key
        data = await self._store.get_part(key, part.offset, part.length, index.end)
        if data is None:
            raise self._missing()
        return data

    def _missing(self, key: str = "") -> FarcallError:
        if key:
            return SharedMissingError(
                f"s3://{self._where.bucket}/{key} no longer exists: a shared value is deleted "
                "when no run uses it, or by the bucket's lifecycle rule"
            )
        return FarcallError(
            f"{self._where.url} no longer exists: input data is deleted when all its tasks' "
            "results have been delivered, or by the bucket's lifecycle rule"
        )


async def _tail(store: Store, where: Location) -> Buffer | None:
    """Return the last bytes of a bundle, including at least the root of its index."""
    tail = await store.get_end(where.bundle_key, _FIRST_READ_BYTES)
    if tail is not None and (size := envelope.root_size(tail)) > len(tail):
        tail = await store.get_end(where.bundle_key, size)
    return tail


def _root(tail: Buffer) -> bytes:
    return bytes(tail[-envelope.root_size(tail) :])
