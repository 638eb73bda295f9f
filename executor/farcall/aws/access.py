"""Access protocol: the clients that a session needs for one account."""

from __future__ import annotations

from typing import Protocol

from obstore.store import S3Store

from farcall.aws.buckets import BucketLocation
from farcall.aws.s3 import Operations
from farcall.model.timing import Timing


class Access(Protocol):
    """Buckets and their locations; `farcall.aws.clients.Aws` implements it for AWS.

    Attributes:
        region: The region in use.
        has_console: Whether this is AWS itself, whose console shows jobs and logs.
        timing: Time limits and retries of the clients.
        overruled: Warning that other keys take precedence over the ``credentials`` file; empty if
            none do.
    """

    region: str
    has_console: bool
    timing: Timing
    overruled: str

    @property
    def region_and_origin(self) -> str:
        """The region and the source of its configuration; see `Aws.region_and_origin`."""

    def store(self, bucket: str, *, sending: bool = False) -> S3Store:
        """Open the store of a bucket; see `Aws.store`."""

    def operations(self, bucket: str) -> Operations:
        """Return the requests to a bucket that do not use obstore."""

    def place(self, bucket: str) -> BucketLocation:
        """Return the location of a bucket; see `farcall.aws.buckets`."""

    async def locate(self, bucket: str) -> bool:
        """Request a bucket's region; return whether it differs from the one in use."""

    async def key_and_source(self) -> str:
        """Return the end of the access key's ID and its source, for errors."""

    async def account(self) -> str:
        """Return the account's ID, twelve digits."""

    async def close(self) -> None:
        """Close the clients."""
