"""The bucket, as the client uses it: bundles up, outcomes down, the inbox, deletion."""

from __future__ import annotations

import asyncio
import contextlib
import html
import logging
import mmap
import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from farcall.errors import FarcallError, ServiceError, SettingsError
from farcall_runtime import contract
from farcall_runtime.envelope import Buffer

_log = logging.getLogger("farcall")

_SINGLE_PUT_BYTES = 16 * 1024 * 1024
"""Objects up to this size are stored by one request."""

_PART_BYTES = 8 * 1024 * 1024
_MOST_PARTS = 9_000  # S3 allows 10,000
_PARALLEL_PARTS = 6
_STREAM_BYTES = 4 * 1024 * 1024
_PAGE = 1000
_DELETE_WAIT_S = 1.0
_NO_KEY = "farcall-looks-whether-the-bucket-is-there"

_SAID = re.compile(r"<Code>([^<]*)</Code>.*?<Message>([^<]*)</Message>", re.DOTALL)

T = TypeVar("T")


class NoRoomError(FarcallError):
    """A large value came, and the folder it was to lie in has no room for it."""


@dataclass(frozen=True)
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

    async def put(self, key: str, pieces: Sequence[Buffer]) -> None:
        """Store an object, in parallel parts if it is large.

        Raises:
            SettingsError: There is no such bucket.
            ServiceError: S3 refused or could not be reached.
        """
        total = sum(len(piece) for piece in pieces)
        await self._call(
            "PutObject",
            key,
            obstore.put_async(
                self._store,
                key,
                pieces,
                use_multipart=total > _SINGLE_PUT_BYTES,
                chunk_size=max(_PART_BYTES, total // _MOST_PARTS),
                max_concurrency=_PARALLEL_PARTS,
            ),
        )

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

    async def get_into(self, folder: str, key: str, size: int) -> memoryview | None:
        """Return an object as a view of a file that has no name and ends with the view.

        Args:
            folder: Where the file lies; it is made if it is not there.
            key: The object's key.
            size: Its size in bytes, more than 0.

        Returns:
            The bytes, or None if there is no such object or it has another size.

        Raises:
            NoRoomError: The folder has no room for it.
            SettingsError: There is no such bucket.
            ServiceError: S3 refused or could not be reached.
        """
        try:
            await asyncio.to_thread(Path(folder).mkdir, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as file:
                try:
                    reply = await self._call("GetObject", key, obstore.get_async(self._store, key))
                except FileNotFoundError:  # the object; below it is the folder
                    return None
                if reply.meta["size"] != size:
                    return None
                async for piece in reply.stream(min_chunk_size=_STREAM_BYTES):
                    await asyncio.to_thread(file.write, piece)
                file.flush()
                return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))
        except BaseError as error:
            raise self._refused("GetObject", key, error) from error
        except OSError as error:
            raise NoRoomError(
                f"cache_dir is {folder!r}, where a value of {size} bytes was to lie for a moment: "
                f"{error}; make room there, or set cache_dir to a folder that has it (s3://"
                f"{self.bucket}/{key} is still there)"
            ) from error

    async def list_outcomes(self, root: str) -> AsyncIterator[Arrived]:
        """Yield what lies in a run's inbox.

        Raises:
            SettingsError: There is no such bucket.
            ServiceError: S3 refused or could not be reached.
        """
        prefix = contract.outcomes_prefix(root)
        pages = obstore.list(self._store, prefix, chunk_size=_PAGE)
        try:
            async for page in pages:
                for meta in page:
                    bundle, _, index = meta["path"][len(prefix) :].partition("/")
                    if index.isdigit():
                        yield Arrived(bundle, int(index), meta["size"])
        except (BaseError, OSError) as error:
            raise self._refused("ListObjectsV2", prefix, error) from error

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
