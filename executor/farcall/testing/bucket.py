"""Buckets of the fake cloud: folders with the interface of S3."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import (
    Sequence,
)
from datetime import datetime
from typing import Any, cast

import obstore
from obstore.exceptions import GenericError
from obstore.store import LocalStore, MemoryStore, S3Store

from farcall.aws.buckets import BucketLocation
from farcall.aws.s3 import NO_UPLOAD, Listed, Operations, Page, Stored
from farcall.model.timing import in_force
from farcall.testing.platform import FakePlatform

_KEYS_IN_PAGE = 1000


class FakeAccess:
    """Buckets of one session; see `farcall.aws.access.Access`."""

    has_console = False
    overruled = ""

    def __init__(self, platform: FakePlatform, client: Any, region: str) -> None:
        self._platform = platform
        self.batch = client
        self.region = self.region_and_origin = region
        self.timing = in_force()

    async def client(self, service: str) -> Any:
        """Return the client of AWS Batch, which also serves CloudWatch Logs."""
        return self.batch

    def store(self, bucket: str, *, sending: bool = False) -> S3Store:
        """Open the folder of a bucket."""
        return cast("S3Store", LocalStore.from_url(self.place(bucket).url, mkdir=True))

    def operations(self, bucket: str) -> Operations:
        """Return a bucket's operations that obstore does not support."""
        return _Operations(cast("LocalStore", self.store(bucket)), self._platform)

    def place(self, bucket: str) -> BucketLocation:
        """Return the folder's URL."""
        return BucketLocation(f"{self._platform.url}/{bucket}", self.region)

    async def locate(self, bucket: str) -> bool:
        """Do nothing: every bucket is in the jobs' region."""
        return False

    async def key_and_source(self) -> str:
        """Return an empty text: no key is used."""
        return ""

    async def account(self) -> str:
        """Return an ID that no account has."""
        return "000000000000"

    async def close(self) -> None:
        """Do nothing: nothing is open."""


class StoreOperations(Operations):
    """S3 operations on an obstore store."""

    def __init__(self, store: LocalStore | MemoryStore) -> None:  # without credentials
        self._store = store
        self._uploads: dict[str, dict[int, bytes]] = {}

    async def page(
        self, prefix: str, *, after: str = "", delimiter: str = "", token: str = ""
    ) -> Page:
        """Return a page of up to 1000 keys, or all folders."""
        if delimiter:
            level = await self._store.list_with_delimiter_async(prefix)
            return Page([], sorted(f"{each}/" for each in level["common_prefixes"]), "")
        entries = await self._below(prefix)
        entries = sorted(each for each in entries if each.key > (token or after))
        page = entries[:_KEYS_IN_PAGE]
        return Page(page, [], page[-1].key if len(entries) > len(page) else "")

    async def _below(self, prefix: str) -> list[Listed]:
        # Not with `list`: for a store in memory, it waits for the store's lock while it holds
        # the interpreter lock, and an obstore thread may hold the first and wait for the second.
        level = await self._store.list_with_delimiter_async(prefix)
        entries = [
            Listed(each["path"], each["size"], _in_s3_format(each["last_modified"]))
            for each in level["objects"]
        ]
        for folder in level["common_prefixes"]:
            entries += await self._below(folder)
        return entries

    async def head(self, key: str) -> Stored:
        """Return an object's metadata."""
        response = await obstore.get_async(self._store, key)
        data = await response.bytes_async()
        digest = hashlib.sha256(data).hexdigest()
        return Stored(len(data), response.meta["last_modified"], digest)

    async def begin_upload(self, key: str) -> str:
        """Start an upload."""
        upload = secrets.token_hex(8)
        self._uploads[upload] = {}
        return upload

    async def upload_part(
        self, key: str, upload: str, number: int, data: bytes, digest: str
    ) -> str:
        """Store a part."""
        if hashlib.sha256(data).hexdigest() != digest:
            raise GenericError("status 400: <Code>XAmzContentSHA256Mismatch</Code>")
        self._parts(upload)[number] = bytes(data)
        return f"{upload}-{number}"

    async def complete_upload(
        self, key: str, upload: str, parts: Sequence[tuple[str, str]]
    ) -> None:
        """Create an object from all parts."""
        sent = self._parts(upload)
        expected = [
            (f"{upload}-{number}", hashlib.sha256(sent[number]).hexdigest())
            for number in sorted(sent)
        ]
        if list(parts) != expected:
            raise GenericError("status 400: <Code>InvalidPart</Code>")
        await obstore.put_async(self._store, key, [sent[number] for number in sorted(sent)])
        del self._uploads[upload]

    async def abort_upload(self, key: str, upload: str) -> None:
        """Delete the parts."""
        self._parts(upload)
        del self._uploads[upload]

    def _parts(self, upload: str) -> dict[int, bytes]:
        if upload not in self._uploads:
            raise GenericError(f"status 404: <Code>{NO_UPLOAD}</Code>")
        return self._uploads[upload]


class _Operations(StoreOperations):
    """Bucket operations that list outcomes only after their tasks have finished.

    So a caller who has a result always finds the job finished.
    """

    def __init__(self, store: LocalStore, platform: FakePlatform) -> None:
        super().__init__(store)
        self._platform = platform

    async def page(
        self, prefix: str, *, after: str = "", delimiter: str = "", token: str = ""
    ) -> Page:
        page = await super().page(prefix, after=after, delimiter=delimiter, token=token)
        there = [each for each in page.objects if not self._is_early(each.key)]
        return page._replace(objects=there)

    def _is_early(self, key: str) -> bool:
        _, is_outcome, place = key.rpartition("/outcomes/")
        bundle, _, index = place.partition("/")
        return bool(
            is_outcome and index.isdecimal() and self._platform.is_going(bundle, int(index))
        )


def _in_s3_format(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
