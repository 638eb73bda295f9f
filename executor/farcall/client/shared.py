"""Shared value: stored in the bucket once, used in any number of calls."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any, Generic, SupportsIndex, TypeVar

from farcall.config.settings import Settings
from farcall.engine.session import Session, session_for
from farcall.model.errors import FarcallError
from farcall.payload import pickling
from farcall.payload.project import Pickling
from farcall.payload.shared import Value
from farcall_runtime.contract import run_root

T = TypeVar("T")


class Shared(Generic[T]):
    """Reference to a value that was uploaded to the bucket, as `BatchExecutor.put` returns it.

    Pass it in the arguments of a call in place of the value, also inside a list, a dictionary or
    an attribute. The function receives the value itself.

    Attributes:
        size: Size of the pickled value in bytes.
    """

    def __init__(self, value: Value, session: Session, settings: Settings, name: str) -> None:
        self.size = value.size
        self._value = value
        self._session = weakref.ref(session)  # keeping this object does not keep connections open
        self._loop = asyncio.get_running_loop()
        self._bucket = settings.s3_bucket_name
        self._root = run_root(settings.prefix, session.run)
        self._name = name
        self._is_discarded = False

    def __repr__(self) -> str:
        state = ", discarded" if self._is_discarded else ""
        return f"<Shared {self._name} of {self.size / 1e6:.1f} MB in s3://{self._bucket}{state}>"

    def __reduce_ex__(self, _protocol: SupportsIndex) -> tuple[Any, ...]:
        if self._is_discarded:
            raise FarcallError(f"{self!r} is no longer in the bucket. Put the value again")
        return self._value.reduce()

    async def discard(self) -> None:
        """Release the value: it is deleted as soon as no job of any run needs it.

        Later submissions with this object are rejected. A second call is not an error. Without it,
        the value is deleted when the run ends: when the block is left, or the event loop ends.

        Raises:
            FarcallError: Another event loop stored the value.
            SettingsError: The bucket does not exist.
            ServiceError: S3 refused a request or could not be reached.
        """
        if self._loop is not asyncio.get_running_loop():
            raise FarcallError(
                "this value was put on another event loop. Discard it there; otherwise it is "
                "deleted when that loop ends"
            )
        if self._is_discarded:
            return
        self._is_discarded = True
        session = self._session()
        if session is None:  # it was deleted with the run
            return
        with session.at_work():
            store = session.stores.of(self._bucket)
            digests = [piece.sha256 for piece in self._value.pieces]
            await session.shared.discard(store, self._root, digests)


async def put(settings: Settings, value: T) -> Shared[T]:
    """Store a value unless it exists; see `BatchExecutor.put`."""
    session = await session_for(settings)
    with session.at_work():
        await session.submitter(settings)  # checks that the bucket exists
        using = await session.threads.run(Pickling.of, settings)
        packed = await session.threads.run(pickling.pack_value, value, using)
        store = session.stores.of(settings.s3_bucket_name)
        root = run_root(settings.prefix, session.run)
        await session.shared.pin(store, root, packed.pieces)
    packed.forget()
    return Shared(packed, session, settings, type(value).__name__)
