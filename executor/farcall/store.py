"""The bucket, as the client uses it: bundles up, outcomes down, the inbox, deletion."""

from __future__ import annotations

import asyncio
import contextlib
import html
import logging
import mmap
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from farcall.errors import ServiceError, SettingsError
from farcall.spilling import NoRoomError, open_file
from farcall.transfers import (
    PARALLEL_PARTS,
    PART_BYTES,
    SINGLE_PUT_BYTES,
    Filling,
    Rest,
    fetch_in_parts,
    joined,
    take,
)
from farcall_runtime import contract
from farcall_runtime.envelope import Buffer

_log = logging.getLogger("farcall")

_STREAM_BYTES = 4 * 1024 * 1024
_PAGE = 1000
_DELETE_WAIT_S = 1.0
_NO_KEY = "farcall-looks-whether-the-bucket-is-there"

_SAID = re.compile(r"<Code>([^<]*)</Code>.*?<Message>([^<]*)</Message>", re.DOTALL)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Arrived:
    """An outcome in the inbox.

    Attributes:
        bundle: Name of its bundle.
        index: Number of the array child.
        size: Bytes of the object.
    """

    bundle: str
    index: int
    size: int


class Store:
    """One bucket.

    Args:
        bucket: Its name.
        store: Its obstore store.
    """

    def __init__(self, bucket: str, store: S3Store) -> None:
        self.bucket = bucket
        self._store = store
        self._doomed: list[str] = []
        self._sweeping: asyncio.Future[None] | None = None
        self._may_delete = True

    async def check(self, root: str) -> None:
        """See that the bucket is there, and that a run's inbox can be looked into.

        Args:
            root: Key prefix of the run.

        Raises:
            SettingsError: There is no such bucket.
            ServiceError: S3 refused or could not be reached.
        """
        # One GET tells a missing bucket from a missing object. Without s3:ListBucket S3 answers
        # both with 403, so this also finds a client that could not see its outcomes.
        key = f"{contract.outcomes_prefix(root)}{_NO_KEY}"
        with contextlib.suppress(FileNotFoundError):
            await self._call("GetObject", key, obstore.get_async(self._store, key))

    async def put(self, key: str, pieces: Iterable[Buffer], *, quick: bool = False) -> None:
        """Store an object while its pieces are still being made; a large one in parallel parts.

        Args:
            key: Its key.
            pieces: Its bytes; a large piece is read where it lies.
            quick: Whether they are made so quickly that they need no thread.

        Raises:
            Exception: What comes out of ``pieces``.
            SettingsError: There is no such bucket.
            ServiceError: S3 refused or could not be reached.
        """
        chunks = joined(pieces)
        first = take(chunks) if quick else await asyncio.to_thread(take, chunks)
        if sum(map(len, first)) <= SINGLE_PUT_BYTES:
            request = obstore.put_async(self._store, key, first, use_multipart=False)
            await self._call("PutObject", key, request)
            return
        rest = Rest(first, chunks)
        request = obstore.put_async(
            self._store,
            key,
            rest,
            use_multipart=True,
            chunk_size=PART_BYTES,
            max_concurrency=PARALLEL_PARTS,
        )
        try:
            await self._call("PutObject", key, request)
        except ServiceError:
            if rest.error is not None:  # obstore tells of it in words of its own
                raise rest.error from None
            raise

    async def get(self, key: str, size: int | None = None) -> bytearray | None:
        """Return an object, or None if there is none.

        Args:
            key: Its key.
            size: Its size in bytes where it is known, which saves a look.

        Raises:
            SettingsError: There is no such bucket.
            ServiceError: S3 refused or could not be reached.
        """
        try:
            reply = await self._call("GetObject", key, obstore.get_async(self._store, key))
            total = reply.meta["size"] if size is None else size
            if total <= _STREAM_BYTES:
                return bytearray(await self._call("GetObject", key, reply.bytes_async()))
            data = bytearray(total)
            at = 0
            async for piece in reply.stream(min_chunk_size=_STREAM_BYTES):
                data[at : at + len(piece)] = piece
                at += len(piece)
        except FileNotFoundError:
            return None
        except (BaseError, OSError) as error:
            raise self._refused("GetObject", key, error) from error
        return data

    async def get_large(
        self, key: str, size: int, folder: str | None = None
    ) -> tuple[Buffer, str] | None:
        """Return a large object and its digest, fetched in parallel parts, hashed meanwhile.

        Args:
            key: Its key.
            size: Its size in bytes, more than 0.
            folder: Where it is to lie in a file that has no name and ends with the buffer; it is
                made if it is not there. By default it lies in memory.

        Returns:
            The bytes, which may be written to, and their SHA-256, hexadecimal; None if there is
            no such object or it has another size.

        Raises:
            NoRoomError: The folder has no room for it.
            SettingsError: There is no such bucket.
            ServiceError: S3 refused or could not be reached.
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
                # Arrays on top of it may be changed; what is changed is then in memory.
                return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)), digest
        except OSError as error:
            raise NoRoomError.of(
                f"{folder}", f"a value of {size} bytes (s3://{self.bucket}/{key})", error
            ) from error

    async def _fetch(self, key: str, size: int, write: Callable[[Buffer], object]) -> str | None:
        """Have an object written in its order; return its SHA-256, hexadecimal."""

        async def part(start: int, end: int) -> Buffer | None:
            return await self._part(key, start, end, size)

        return await fetch_in_parts(part, size, write)

    async def _part(self, key: str, start: int, end: int, size: int) -> Buffer | None:
        """Return a part of an object; None if it is not there or has another size."""
        request = obstore.get_async(self._store, key, options={"range": (start, end)})
        try:
            reply = await self._call("GetObject", key, request)
            if reply.meta["size"] != size:
                return None
            return memoryview(await self._call("GetObject", key, reply.bytes_async()))
        except FileNotFoundError:
            return None

    async def list_outcomes(
        self, root: str, bundle: str = "", after: str = ""
    ) -> tuple[list[Arrived], str]:
        """Return what lies in a run's inbox, one page of at most 1000 in the order of their text.

        Args:
            root: Key prefix of the run.
            bundle: Only this bundle's; by default all.
            after: ``<bundle>/<index>``, or any text: only what comes after it.

        Returns:
            The outcomes, and where there may be more the last one's ``<bundle>/<index>``, to go
            on after; otherwise an empty string.

        Raises:
            SettingsError: There is no such bucket.
            ServiceError: S3 refused or could not be reached.
        """
        inbox = contract.outcomes_prefix(root)
        prefix = f"{inbox}{bundle}/" if bundle else inbox
        offset = f"{inbox}{after}" if after else None
        pages = obstore.list(self._store, prefix, offset=offset, chunk_size=_PAGE)
        try:
            page = await anext(aiter(pages), None)  # asked for one chunk, it sends one request
        except (BaseError, OSError) as error:
            raise self._refused("ListObjectsV2", prefix, error) from error
        names = [(meta["path"][len(inbox) :], meta["size"]) for meta in page or ()]
        found = []
        for name, size in names:
            owner, _, index = name.partition("/")
            if index.isdigit():
                found.append(Arrived(owner, int(index), size))
        return found, names[-1][0] if len(names) == _PAGE else ""

    async def list_keys(self, prefix: str) -> list[tuple[str, int]]:
        """Return keys and sizes of the objects below a prefix that ends with a slash, sorted.

        Raises:
            SettingsError: There is no such bucket.
            ServiceError: S3 refused or could not be reached.
        """
        try:
            pages = obstore.list(self._store, prefix, chunk_size=_PAGE)
            found = [(meta["path"], meta["size"]) async for page in pages for meta in page]
        except (BaseError, OSError) as error:
            raise self._refused("ListObjectsV2", prefix, error) from error
        return sorted(found)

    def delete_later(self, keys: Iterable[str]) -> None:
        """Delete objects in bulk, a little later; failing to is not an error."""
        if not self._may_delete:
            return
        self._doomed.extend(keys)
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.ensure_future(self._sweep(_DELETE_WAIT_S))

    async def flush(self) -> None:
        """Delete now what was to be deleted later."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        await self._sweep(0)

    async def _sweep(self, wait_s: float) -> None:
        while self._doomed and self._may_delete:
            if len(self._doomed) < _PAGE:
                await asyncio.sleep(wait_s)
            keys = self._doomed[:_PAGE]
            try:
                await obstore.delete_async(self._store, keys)
            except (BaseError, OSError) as error:
                self._may_delete = not isinstance(error, PermissionDeniedError)
                _log.warning(
                    "delivered objects stay in s3://%s (%s); a lifecycle rule can delete them",
                    self.bucket,
                    _reason(error),
                )
            del self._doomed[: len(keys)]  # only now: a sweep may be cancelled in its request

    async def _call(self, operation: str, key: str, request: Awaitable[T]) -> T:
        try:
            return await request
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise self._refused(operation, key, error) from error
            raise
        except (BaseError, OSError) as error:
            raise self._refused(operation, key, error) from error

    def _refused(self, operation: str, key: str, error: BaseException) -> Exception:
        text = str(error)
        if "NoSuchBucket" in text:
            return SettingsError(
                f"s3_bucket_name is {self.bucket!r}, and there is no such bucket in this account "
                "and region; create it, or set s3_bucket_name to one that exists",
                option="s3_bucket_name",
            )
        sentence = f"{operation} of s3://{self.bucket}/{key} failed: {_reason(error)}"
        code = ""
        if isinstance(error, (PermissionDeniedError, UnauthenticatedError)):
            code = "AccessDenied"
            sentence += "; the credentials in use need permission for it"
        return ServiceError(sentence, operation=operation, code=code)


def _reason(error: BaseException) -> str:
    """Return S3's own sentence where there is one; obstore shows the whole answer."""
    said = _SAID.search(str(error))
    if said is None:
        return str(error).partition("\n")[0]
    return f"{html.unescape(said[2])} ({said[1]})"
