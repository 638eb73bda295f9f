"""Shared values in the bucket: each stored once, and deleted once no run refers to it.

Nobody owns one, and no server counts who refers to it. So it is by *markers* that this is known,
and by an order of requests that keeps a value from being deleted which somebody is about to use.
Under ``shared/<sha256>/`` lie

* ``data/<generation>``: the bytes. Each upload has a name of its own, which no other ever has;
* ``held/<run>``: the marker of a run that refers to the value;
* ``condemned/<generation>``: says that somebody may be deleting these bytes.

Who wants to use a value (`hold`) stores a marker, lists what is condemned, then lists the data. A
generation that is not condemned is taken; otherwise there is a new one. Only then a job is
submitted that names it.

Who wants to delete (`collect`) finds no marker, condemns each generation, and looks for markers
again. Where there is one by now, the generations stay, condemned, and nobody new takes them.
Otherwise the data goes, and after it what condemned it.

S3's lists, reads and writes are consistent, so one of two sees the other: either the marker was
there at the second look, or its owner lists later, and finds the generation condemned or gone.
Every other order that was tried lost a value: data listed before what is condemned, nothing
condemned, a marker that is stored last, one key for each value.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/Welcome.html#ConsistencyModel
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

from farcall.model.errors import FarcallError, ServiceError
from farcall.payload.shared import Piece
from farcall.storage.store import NO_SUCH_KEY, RunInThread, Store
from farcall_runtime.contract import SHARED, SharedPlace, bundles_prefix
from farcall_runtime.envelope import Buffer

_log = logging.getLogger("farcall")

ABANDONED = timedelta(days=1)
"""A marker that is older was not renewed for as long: its run is over, or sleeps."""

FRESH = timedelta(days=10)
"""Data that is older is copied before it is used again: a lifecycle rule deletes it after 30 days,
counted from when it was stored."""

MARK = b"farcall"
"""What a marker holds: whoever looks into the bucket sees whose it is."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_STEP_BYTES = 8 * 1024 * 1024


def new_generation() -> str:
    """Return a name for an upload that no other has."""
    return secrets.token_hex(16)


async def hold(
    store: Store, place: SharedPlace, run: str, piece: Piece, *, thread: RunInThread
) -> str:
    """See to it that a value is in the bucket and stays there, as long as this run's marker does.

    Args:
        store: The bucket.
        place: Where the value lies.
        run: Name of this run.
        piece: The value.
        thread: Where it is hashed once more, while it is sent.

    Returns:
        Its generation, for the bundles that refer to it.

    Raises:
        FarcallError: It is not there, and its bytes are not here; or they were changed since they
            were hashed.
        SettingsError: There is no such bucket.
        ServiceError: S3 refused or could not be reached.
    """
    await store.put(place.held_key(run), [MARK], quick=True)
    condemned = await store.list_stored(place.condemned_prefix)
    there = await store.list_stored(place.data_prefix)
    usable = {
        name: at
        for name, (size, at) in there.items()
        if size == piece.size and name not in condemned and "/" not in name
    }
    newest = max(usable, key=usable.__getitem__, default=None)
    if newest is not None and datetime.now(timezone.utc) - usable[newest] < FRESH:
        return newest
    generation = new_generation()
    if newest is not None and await _copy(store, place, newest, generation):
        return generation
    if piece.data is None:
        raise missing(store, place)
    _log.info(
        "storing a shared value, %.1f MB, as s3://%s/%s",
        *(piece.size / 1e6, store.bucket, place.data_key(generation)),
    )
    await store.put(place.data_key(generation), _checked(piece, piece.data), run=thread)
    return generation


async def confirm(store: Store, place: SharedPlace, run: str, generation: str, size: int) -> None:
    """Hold a generation that a bundle names already, which runs again.

    Args:
        store: The bucket.
        place: Where the value lies.
        run: Name of this run.
        generation: What the bundle says.
        size: Likewise, its bytes.

    Raises:
        FarcallError: It is gone, or may be deleted at any moment.
        SettingsError: There is no such bucket.
        ServiceError: S3 refused or could not be reached.
    """
    await store.put(place.held_key(run), [MARK], quick=True)
    condemned = await store.list_stored(place.condemned_prefix)
    there = await store.list_stored(place.data_prefix)
    if generation in condemned or there.get(generation, (-1,))[0] != size:
        raise missing(store, place)


async def release(store: Store, place: SharedPlace, run: str) -> None:
    """Take this run's marker away: no job of it may still ask for the value.

    Raises:
        SettingsError: There is no such bucket.
        ServiceError: S3 refused or could not be reached.
    """
    await store.delete([place.held_key(run)])


async def collect(store: Store, place: SharedPlace) -> bool:
    """Delete a value, unless a run refers to it.

    Returns:
        Whether it was deleted.

    Raises:
        SettingsError: There is no such bucket.
        ServiceError: S3 refused or could not be reached.
    """
    if await _is_held(store, place):
        return False
    # In this order: what was condemned before, and has no data now, never has any again.
    condemned = await store.list_stored(place.condemned_prefix)
    there = await store.list_stored(place.data_prefix)
    for generation in there:
        await store.put(place.condemned_key(generation), [MARK], quick=True)
    if there and await _is_held(store, place):
        return False
    await store.delete([place.data_key(each) for each in there])
    await store.delete([place.condemned_key(each) for each in {**condemned, **there}])
    return True


async def values_in(store: Store, prefix: str) -> list[SharedPlace]:
    """Return where the values of a bucket lie.

    Raises:
        SettingsError: There is no such bucket.
        ServiceError: S3 refused or could not be reached.
    """
    names = await store.list_folders(prefix)
    return [SharedPlace(f"{prefix}{name}") for name in names if _DIGEST.fullmatch(name)]


def missing(store: Store, place: SharedPlace) -> FarcallError:
    """Return the error that says that a value is not there, and what to do."""
    return FarcallError(
        f"a shared value is no longer at s3://{store.bucket}/{place.data_prefix}, and its bytes "
        "are not here; put it again, and find out who deletes there: a lifecycle rule must leave "
        "it for 30 days"
    )


async def _is_held(store: Store, place: SharedPlace) -> bool:
    """Return whether a run refers to a value; take markers away of those that are over."""
    markers = await store.list_times(place.held_prefix)
    now = datetime.now(timezone.utc)
    if any(now - at < ABANDONED for at in markers.values()):
        return True
    # What a run has submitted is in its bundles, also what failed and may be run again.
    runs = place.root.rpartition(f"/{SHARED}/")[0]
    for run in markers:
        if await store.is_there(bundles_prefix(f"{runs}/{run}")):
            return True
    if markers:
        await store.delete([place.held_key(run) for run in markers])
    return False


async def _copy(store: Store, place: SharedPlace, generation: str, to: str) -> bool:
    """Copy data, so that it is as if stored today; say whether it was there."""
    try:
        await store.copy(place.data_key(generation), place.data_key(to))
    except ServiceError as error:
        if error.code != NO_SUCH_KEY:
            raise
        return False
    return True


def _checked(piece: Piece, data: Buffer) -> Iterator[bytes]:
    """Yield copies of a value's bytes, which are what was hashed before.

    Raises:
        FarcallError: They are not; nothing is stored then, for it comes before the end.
    """
    digest = hashlib.sha256()
    for start in range(0, len(data), _STEP_BYTES):
        step = bytes(data[start : start + _STEP_BYTES])
        digest.update(step)
        yield step
    if digest.digest() != piece.sha256:
        raise FarcallError(
            f"an argument of {piece.size} bytes was changed while it was being sent; leave arrays "
            "as they are until the calls are submitted, or pass a copy"
        )
