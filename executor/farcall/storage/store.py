"""Object store: the client's operations on its bucket."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import mmap
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias, TypeVar

import obstore
from obstore.store import S3Store

from farcall.aws.access import Access
from farcall.aws.error_translation import concerns_all, is_of_credentials, may_pass
from farcall.aws.s3 import NO_UPLOAD, Listed, Page, Stored, moment_of
from farcall.model.errors import FarcallError, ServiceError, SettingsError
from farcall.model.submission import Submission
from farcall.payload.spill import NoRoomError, open_file
from farcall.storage.bucket import RANGE_IGNORED, Bucket
from farcall.storage.deletions import Deletions
from farcall.storage.transfers import (
    PART_BYTES,
    SINGLE_PUT_BYTES,
    Filling,
    Part,
    fetch_in_parts,
    in_parts,
    joined,
    send_in_parts,
    take,
)
from farcall_runtime import contract, envelope
from farcall_runtime.contract import ENV_BUNDLE
from farcall_runtime.envelope import Buffer

_log = logging.getLogger("farcall")

_STREAM_BYTES = 4 * 1024 * 1024
_SHORT_BYTES = 1024 * 1024
"""Maximum size of an upload that takes less than half a minute on any network."""

_RECEIPT_BYTES = 64 * 1024
"""Maximum size of a receipt in bytes; a valid one has one bit per task.

Other writers can store objects of any size.
"""

_MOST_DIGITS = 12
_CHUNK = re.compile(r"\d{8}|[1-9]\d{8,11}", re.ASCII)
_BEHIND_END = "InvalidRange"
NO_SUCH_KEY = "NoSuchKey"
"""S3's error code for a missing object."""

_TOO_LARGE_TO_COPY = "InvalidRequest"
_NO_KEY = "farcall-looks-whether-the-bucket-is-there"
_ABORT_S = 5.0
"""Maximum time in seconds for which an abandoned upload waits for its abortion."""

T = TypeVar("T")

RunInThread: TypeAlias = Callable[..., Awaitable[Any]]
"""Runs a function with its arguments in a thread, as `asyncio.to_thread` does."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """An outcome in the bucket.

    Attributes:
        bundle: Name of its bundle.
        index: Index of the array task.
        size: Size of the object in bytes.
    """

    bundle: str
    index: int
    size: int


def number_in(text: str) -> int | None:
    """Parse a number in a key; return None if it is not in farcall's notation.

    Other writers can store anything, such as ``007``, ``+1`` and digits of other alphabets.
    """
    if not text.isascii() or not text.isdecimal() or len(text) > _MOST_DIGITS:
        return None
    return int(text) if text == "0" or text[0] != "0" else None


def is_chunk(name: str) -> bool:
    """Return whether the last part of a key names an output chunk or a result's part."""
    return _CHUNK.fullmatch(name) is not None


class Store(Deletions):
    """One bucket.

    All methods that make requests raise `SettingsError` if the bucket does not exist, and
    `ServiceError` if S3 refuses or cannot be reached.

    Args:
        bucket: Name of the bucket.
        access: Access to the bucket, with retry limits and maximum sizes.
    """

    def __init__(self, bucket: str, access: Access) -> None:
        super().__init__(Bucket(bucket, access), access.timing)
        self.bucket = bucket
        self._operations = access.operations(bucket)

    @property
    def given_up_at(self) -> float:
        """Loop time at which a caller last cancelled a request; minus infinity if none."""
        return self._requests.given_up_at

    @property
    def requests(self) -> int:
        """Number of requests sent, including repetitions."""
        return self._requests.requests

    async def check(self, root: str) -> None:
        """Check that the bucket exists and that the run's outcomes can be listed."""
        # One GET distinguishes a missing bucket from a missing object. Without s3:ListBucket, S3
        # returns 403 for both, so this also finds a client that could not list its outcomes.
        key = f"{contract.outcomes_prefix(root)}{_NO_KEY}"
        with contextlib.suppress(FileNotFoundError):
            await self._requests.send("GetObject", key, lambda s: obstore.get_async(s, key))

    async def put(
        self,
        key: str,
        pieces: Iterable[Buffer],
        *,
        quick: bool = False,
        on_sent: Callable[[int], object] = lambda _: None,
        run: RunInThread = asyncio.to_thread,
    ) -> None:
        """Store an object while its pieces are being made; a large one in parallel parts.

        Args:
            key: Key of the object.
            pieces: Bytes of the object; large pieces are not copied.
            quick: Whether the pieces can be made without a thread.
            on_sent: Called with the number of uploaded bytes since the last call.
            run: Runs the generator of the pieces in a thread.

        Raises:
            Exception: Raised by ``pieces``.
        """
        chunks = joined(pieces)
        first = take(chunks) if quick else await run(take, chunks)
        size = sum(map(len, first))
        if size <= SINGLE_PUT_BYTES:
            await self._requests.send(
                "PutObject",
                key,
                lambda store: obstore.put_async(store, key, first, use_multipart=False),
                sending=size > _SHORT_BYTES,
            )
            on_sent(size)
            return
        parts = in_parts(first, chunks)
        await self._upload(key, lambda: run(next, parts, None), on_sent)

    async def _upload(
        self,
        key: str,
        make: Callable[[], Awaitable[Part | None]],
        on_sent: Callable[[int], object] = lambda _: None,
    ) -> None:
        """Store an object in parts; an interrupted upload is aborted."""
        send, operations = self._send, self._operations
        upload = await send("CreateMultipartUpload", key, operations.begin_upload, key)
        size = 0

        async def send_part(number: int, part: Part) -> tuple[str, str]:
            nonlocal size
            size += len(part.data)
            sent = key, upload, number, part.data, part.digest
            tag = await send("UploadPart", key, operations.upload_part, *sent)
            on_sent(len(part.data))
            return tag, part.digest

        try:
            parts = await send_in_parts(make, send_part)
            await self._complete(key, upload, parts, size)
        except BaseException:
            aborting = asyncio.ensure_future(self._abort(key, upload))
            try:
                await asyncio.wait({aborting}, timeout=_ABORT_S)
            finally:
                aborting.cancel()
            raise

    async def _complete(
        self, key: str, upload: str, parts: Sequence[tuple[str, str]], size: int
    ) -> None:
        complete = self._operations.complete_upload
        try:
            await self._send("CompleteMultipartUpload", key, complete, key, upload, parts)
        except ServiceError as error:
            # On a second attempt, this error means that the first one succeeded and its response
            # was lost, because no other client knows the upload.
            stored = None if error.code != NO_UPLOAD else await self.head(key)
            if stored is None or stored.size != size:
                raise

    async def _abort(self, key: str, upload: str) -> None:
        abort = self._operations.abort_upload
        try:
            await self._send("AbortMultipartUpload", key, abort, key, upload)
        except FarcallError as error:
            if getattr(error, "code", "") != NO_UPLOAD:
                _log.warning(
                    "an interrupted upload was not aborted (%s); a lifecycle rule can delete its "
                    "parts",
                    error,
                )

    async def _send(
        self, operation: str, key: str, request: Callable[..., Awaitable[T]], *args: Any
    ) -> T:
        """Make a request without obstore; see `Bucket.send`."""
        return await self._requests.send(operation, key, lambda _: request(*args))

    async def get(self, key: str, size: int | None = None) -> bytearray | None:
        """Return an object, or None if it does not exist.

        Args:
            key: Key of the object.
            size: Expected size in bytes, if known.

        Raises:
            envelope.IntegrityError: The object has another size, or exceeds the maximum size.
        """
        dated = await self.get_dated(key, size)
        return None if dated is None else dated[0]

    async def receipted(self, submission: Submission, keys: Iterable[str]) -> set[int]:
        """Return the tasks whose results a client has collected, from its receipts.

        Args:
            submission: The job.
            keys: Keys of its receipts; objects of other writers are ignored.

        Raises:
            ServiceError: S3 refused.
        """
        indexes: set[int] = set()
        for key in keys:
            try:
                got = await self.get_dated(key, most=_RECEIPT_BYTES)
                if got is not None:
                    indexes |= envelope.receipted(submission.key, key, got[0], submission.size)
            except envelope.EnvelopeError:
                continue
            except ServiceError as error:
                if concerns_all(error) or is_of_credentials(error) or may_pass(error):
                    raise
                # For example, an object of another storage class, or encrypted with another key.
                _log.warning("%s; skipped, because it is not one of farcall's receipts", error)
        return indexes

    async def get_dated(
        self, key: str, size: int | None = None, most: int | None = None
    ) -> tuple[bytearray, datetime] | None:
        """Return an object of at most ``most`` bytes, and its storage time; see `get`."""

        async def fetch(store: S3Store) -> tuple[bytearray, datetime]:
            reply = await obstore.get_async(store, key)
            total, at = reply.meta["size"], reply.meta["last_modified"]
            if total > (most or self._timing.largest_outcome_bytes) or size not in (None, total):
                raise envelope.IntegrityError(f"it has {total} bytes")
            if total <= _STREAM_BYTES:
                return bytearray(await reply.bytes_async()), at
            data = bytearray(total)
            start = 0
            async for piece in reply.stream(min_chunk_size=_STREAM_BYTES):
                data[start : start + len(piece)] = piece
                start += len(piece)
            return data, at

        try:
            return await self._requests.send("GetObject", key, fetch)
        except FileNotFoundError:
            return None

    async def get_large(
        self, key: Callable[[int], str], size: int, folder: str | None = None
    ) -> tuple[Buffer, str] | None:
        """Fetch a value that is stored in parts, in parallel; return it and its digest.

        Args:
            key: Returns the key of a part. Parts are numbered from 0 and have `VALUE_PART_BYTES`.
            size: Size of the value in bytes, more than 0.
            folder: Folder for an unnamed file that holds the value until the buffer is released;
                it is created if needed. By default the value is in memory.

        Returns:
            Writable bytes and their SHA-256 in hexadecimal; None if a part does not exist.

        Raises:
            envelope.IntegrityError: A part has another size.
            NoRoomError: The folder has no space.
        """
        try:
            if folder is None:
                target = memoryview(bytearray(size))
                digest = await self._fetch(key, size, Filling(target).write)
                return None if digest is None else (target, digest)
            with await asyncio.to_thread(open_file, folder) as file:
                digest = await self._fetch(key, size, file.write)
                file.flush()
                if digest is None:
                    return None
                # Arrays may modify the mapping; modified pages are private and in memory.
                return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)), digest
        except OSError as error:
            raise NoRoomError.of(
                f"{folder}", f"a value of {size} bytes (s3://{self.bucket}/{key(0)})", error
            ) from error

    async def _fetch(
        self, key: Callable[[int], str], size: int, write: Callable[[Buffer], object]
    ) -> str | None:
        """Write the parts of a value in order; return its SHA-256 in hexadecimal."""
        step = contract.VALUE_PART_BYTES  # several parts of an upload

        async def part(start: int, end: int) -> Buffer | None:
            number, offset = divmod(start, step)
            length = min(step, size - number * step)
            return await self._ranged(key(number), (offset, offset + end - start), length)

        return await fetch_in_parts(part, size, write)

    async def get_part(self, key: str, offset: int, length: int, size: int) -> Buffer | None:
        """Fetch a range of an object, in parallel if it is large; None if none exists.

        Args:
            key: Key of the object.
            offset: First byte of the range.
            length: Number of bytes.
            size: Size of the object in bytes.

        Raises:
            envelope.IntegrityError: The object has another size.
        """

        async def part(start: int, end: int) -> Buffer | None:
            return await self._ranged(key, (offset + start, offset + end), size)

        target = memoryview(bytearray(length))
        whole = await fetch_in_parts(part, length, Filling(target).write)
        return None if whole is None else target

    async def get_end(self, key: str, length: int) -> Buffer | None:
        """Return the last bytes of an object, or None if it does not exist.

        Args:
            key: Key of the object.
            length: Maximum number of bytes.

        Raises:
            envelope.IntegrityError: The object is empty.
        """
        return await self._ranged(key, {"suffix": length})

    async def _ranged(self, key: str, where: Any, size: int | None = None) -> Buffer | None:
        """Return a range of an object of the expected size; None if it does not exist."""

        async def fetch(store: S3Store) -> Buffer:
            reply = await obstore.get_async(store, key, options={"range": where})
            if size not in (None, reply.meta["size"]):
                raise envelope.IntegrityError(f"it has {reply.meta['size']} bytes")
            return memoryview(await reply.bytes_async())

        try:
            return await self._requests.send("GetObject", key, fetch)
        except FileNotFoundError:
            return None
        except ServiceError as error:
            # For an empty object, some stores return the entire object if S3 returns 416.
            stored = await self.head(key) if error.code == RANGE_IGNORED else None
            if error.code == _BEHIND_END or (stored is not None and not stored.size):
                raise envelope.IntegrityError("it is too short") from error
            raise

    async def head(self, key: str) -> Stored | None:
        """Return an object's size, time and digest; None if it does not exist."""
        try:
            return await self._send("HeadObject", key, self._operations.head, key)
        except FileNotFoundError:
            return None

    async def list_outcomes(
        self, root: str, bundle: str = "", after: str = ""
    ) -> tuple[list[Arrived], str]:
        """Return one page of up to 1000 outcomes of a run, sorted by key.

        Args:
            root: Key prefix of the run.
            bundle: Only outcomes of this bundle; by default of all bundles.
            after: Only outcomes after this position: ``<bundle>/<index>``, or any text.

        Returns:
            The outcomes. If there may be more, the last one's ``<bundle>/<index>`` as the next
            ``after``; otherwise "".
        """
        inbox = contract.outcomes_prefix(root)
        prefix = f"{inbox}{bundle}/" if bundle else inbox
        page = await self._page(prefix, after=f"{inbox}{after}" if after else "")
        outcomes = []
        for key, size, _ in page.objects:
            owner, _, index = key[len(inbox) :].partition("/")
            number = number_in(index)
            if number is not None:  # other writers can store anything
                outcomes.append(Arrived(owner, number, size))
        goes_on = bool(page.token and page.objects)
        return outcomes, page.objects[-1].key[len(inbox) :] if goes_on else ""

    async def list_keys(self, prefix: str) -> list[tuple[str, int]]:
        """Return the sorted keys, with sizes, below a prefix that ends with a slash."""
        return [(each.key, each.size) for each in await self._list(prefix)]

    async def list_stored(self, prefix: str) -> dict[str, Stored]:
        """Return sizes and storage times of the objects below a prefix with a slash.

        Returns:
            Both, by the rest of the key after the prefix.
        """
        objects = await self._list(prefix)
        return {each.key[len(prefix) :]: Stored(each.size, moment_of(each.at)) for each in objects}

    async def list_folders(self, prefix: str) -> list[str]:
        """Return the sorted next segments of the keys below a prefix."""
        pages = [page async for page in self._pages(prefix, delimiter="/")]
        names = [each[len(prefix) :].rstrip("/") for page in pages for each in page.folders]
        return [name for name in names if name]

    async def is_there(self, prefix: str) -> bool:
        """Return whether any object exists below a prefix that ends with a slash."""
        async for page in self._pages(prefix):
            if page.objects:
                return True
        return False

    async def _list(self, prefix: str) -> list[Listed]:
        return [each async for page in self._pages(prefix) for each in page.objects]

    async def _pages(self, prefix: str, *, delimiter: str = "") -> AsyncIterator[Page]:
        token = ""
        while True:
            page = await self._page(prefix, delimiter=delimiter, token=token)
            yield page
            token = page.token
            if not token:
                return

    async def _page(self, prefix: str, **how: str) -> Page:
        list_page = functools.partial(self._operations.page, prefix, **how)
        return await self._send("ListObjectsV2", prefix, list_page)

    async def copy(self, key: str, to: str) -> None:
        """Copy an object to another key.

        S3 copies up to 5 GB with one request; a larger object is downloaded and uploaded again.

        Raises:
            SettingsError: The bucket does not exist.
            ServiceError: The object does not exist, or S3 refused or could not be reached.

        Source:
            https://docs.aws.amazon.com/AmazonS3/latest/API/API_CopyObject.html
        """
        try:
            try:
                await self._requests.send(
                    "CopyObject", key, lambda s: obstore.copy_async(s, key, to)
                )
            except ServiceError as error:
                if error.code != _TOO_LARGE_TO_COPY:
                    raise
                await self._copy_through(key, to)
        except FileNotFoundError as error:
            raise ServiceError(
                f"CopyObject of s3://{self.bucket}/{key} failed: it no longer exists; find out "
                "who deletes it",
                operation="CopyObject",
                code=NO_SUCH_KEY,
                status=404,
            ) from error

    async def _copy_through(self, key: str, to: str) -> None:
        """Download an object, and upload it under another key meanwhile.

        Raises:
            FileNotFoundError: The object does not exist.
        """
        stored = await self.head(key)
        if stored is None:
            raise FileNotFoundError(key)
        size = stored.size
        starts = iter(range(0, size, PART_BYTES))

        async def make() -> Part | None:
            start = next(starts, None)
            if start is None:
                return None
            data = await self._ranged(key, (start, min(start + PART_BYTES, size)), size)
            if data is None:
                raise FileNotFoundError(key)
            return await asyncio.to_thread(Part.of, [data])

        await self._upload(to, make)

    async def renew(self, key: str) -> None:
        """Store an object again, unchanged, to renew its age.

        Raises:
            FileNotFoundError: The object does not exist.
        """
        await self._copy_through(key, key)

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects now; missing objects are no error.

        Without the permission to delete, the objects are emptied instead: an empty object is never
        mistaken for its former content.
        """
        try:
            await self._delete_now(keys)
        except ServiceError as error:
            if error.code != "AccessDenied":
                raise
            await asyncio.gather(*(self.put(key, [b""], quick=True) for key in keys))


class Stores:
    """The stores of one session."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._open: dict[str, Store] = {}

    def of(self, bucket: str) -> Store:
        """Return the store of a bucket.

        Raises:
            SettingsError: The options do not name a bucket.
        """
        if not bucket:
            raise SettingsError(_without_bucket(), option="s3_bucket_name")
        if bucket not in self._open:
            self._open[bucket] = Store(bucket, self._access)
        return self._open[bucket]

    def __iter__(self) -> Iterator[Store]:
        return iter(self._open.values())

    @property
    def given_up_at(self) -> float:
        """Time of the last cancelled request, by `clock.now`; minus infinity if none."""
        return max((store.given_up_at for store in self), default=-math.inf)


def _without_bucket() -> str:
    if ENV_BUNDLE in os.environ:
        return (
            "this code runs in a job, which cannot submit jobs: it has none of farcall's options. "
            "Return the inputs of further calls, and submit them in the script"
        )
    return (
        "s3_bucket_name is empty, but functions are sent through a bucket. Run `farcall deploy` "
        "to create one and set the option, or set s3_bucket_name to an existing bucket"
    )
