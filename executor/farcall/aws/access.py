"""Access protocol: what is open for one account, as far as a session asks for it."""

from __future__ import annotations

from typing import Protocol

from obstore.store import S3Store

from farcall.aws.buckets import Place
from farcall.aws.s3 import Operations
from farcall.model.timing import Timing


class Access(Protocol):
    """Buckets, and where they are; AWS's own is `farcall.aws.clients.Aws`.

    Attributes:
        region: The region in force.
        has_console: Whether this is AWS itself, whose console shows jobs and logs.
        timing: Waits and limits of what is opened by it.
        overruled: Warns of a ``credentials`` file that other keys come before; else empty.
    """

    region: str
    has_console: bool
    timing: Timing
    overruled: str

    @property
    def region_and_origin(self) -> str:
        """The region and where it comes from; see `Aws.region_and_origin`."""

    def store(self, bucket: str, *, sending: bool = False) -> S3Store:
        """Open the store of a bucket; see `Aws.store`."""

    def operations(self, bucket: str) -> Operations:
        """Return what asks of a bucket what obstore does not."""

    def place(self, bucket: str) -> Place:
        """Return where requests for a bucket go; see `farcall.aws.buckets`."""

    async def locate(self, bucket: str) -> bool:
        """Ask which region a bucket is in; say whether that is not the one in force."""

    async def account(self) -> str:
        """Return the account's ID, twelve digits."""

    async def close(self) -> None:
        """Let go of what is open."""
