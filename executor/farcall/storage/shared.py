"""Shared values in the bucket: stored once, deleted when no run refers to them.

A value has no owner, and no server counts its references. *Markers* record them, and the order of
requests keeps a value from being deleted while a run is about to use it. Below
``shared/<sha256>/`` there are

* ``data/<generation>``: the bytes. Each upload has a unique name;
* ``held/<run>``: the marker of a run that refers to the value;
* ``condemned/<generation>``: records that a client may be deleting these bytes.

To use a value, `hold` stores a marker, lists the condemned generations, then lists the data. It
uses a generation that is not condemned; otherwise it stores a new one. Only then is a job
submitted that names the generation.

To delete a value, `collect` checks that there is no marker, condemns each generation, and checks
for markers again. If there is one by now, the generations remain condemned, and no new run uses
them. Otherwise it deletes the data, and then the condemnations.

S3's lists, reads and writes are consistent, so one of the two clients sees the other: either the
marker existed at the second check, or its owner lists later, and finds the generation condemned or
deleted. Every other order that was tested lost a value: data listed before the condemned
generations, no condemnations, a marker stored last, one key for each value.
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
"""Age at which a marker's run is assumed to have ended, or to be suspended."""

FRESH = timedelta(days=10)
"""Age at which data is copied before it is used again.

A lifecycle rule deletes it 30 days after it was stored.
"""

MARK = b"farcall"
"""Content of a marker, which identifies its origin."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_STEP_BYTES = 8 * 1024 * 1024


def new_generation() -> str:
    """Return a unique name for an upload."""
    return secrets.token_hex(16)


async def hold(
    store: Store, place: SharedPlace, run: str, piece: Piece, *, thread: RunInThread
) -> str:
    """Store a value in the bucket if needed; it stays as long as this run's marker.

    Args:
        store: The bucket.
        place: Location of the value.
        run: Name of this run.
        piece: The value.
        thread: Runs a function in a thread, which hashes the value again while it is sent.

    Returns:
        Its generation, for the bundles that refer to it.

    Raises:
        FarcallError: It is neither in the bucket nor in this process; or it was changed after it
            was hashed.
        SettingsError: The bucket does not exist.
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
    """Hold a generation that a bundle names, before the bundle runs again.

    Args:
        store: The bucket.
        place: Location of the value.
        run: Name of this run.
        generation: The generation in the bundle.
        size: The size in the bundle, in bytes.

    Raises:
        FarcallError: The generation was deleted, or may be at any moment.
        SettingsError: The bucket does not exist.
        ServiceError: S3 refused or could not be reached.
    """
    await store.put(place.held_key(run), [MARK], quick=True)
    condemned = await store.list_stored(place.condemned_prefix)
    there = await store.list_stored(place.data_prefix)
    if generation in condemned or there.get(generation, (-1,))[0] != size:
        raise missing(store, place)


async def release(store: Store, place: SharedPlace, run: str) -> None:
    """Delete this run's marker; none of its jobs may need the value any more.

    Raises:
        SettingsError: The bucket does not exist.
        ServiceError: S3 refused or could not be reached.
    """
    await store.delete([place.held_key(run)])


async def collect(store: Store, place: SharedPlace) -> bool:
    """Delete a value, unless a run refers to it.

    Returns:
        Whether it was deleted.

    Raises:
        SettingsError: The bucket does not exist.
        ServiceError: S3 refused or could not be reached.
    """
    if await _is_held(store, place):
        return False
    # In this order: a generation that was condemned before, and has no data now, never gets data
    # again.
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
    """Return the locations of a bucket's values.

    Raises:
        SettingsError: The bucket does not exist.
        ServiceError: S3 refused or could not be reached.
    """
    names = await store.list_folders(prefix)
    return [SharedPlace(f"{prefix}{name}") for name in names if _DIGEST.fullmatch(name)]


def missing(store: Store, place: SharedPlace) -> FarcallError:
    """Return the error for a missing value."""
    return FarcallError(
        f"a shared value is no longer at s3://{store.bucket}/{place.data_prefix}, and this "
        "process does not have its data; put it again, and find out who deletes objects there: "
        "lifecycle rules must keep them for 30 days"
    )


async def _is_held(store: Store, place: SharedPlace) -> bool:
    """Return whether a run refers to a value; delete the markers of ended runs."""
    markers = await store.list_times(place.held_prefix)
    now = datetime.now(timezone.utc)
    if any(now - at < ABANDONED for at in markers.values()):
        return True
    # A run's submissions are in its bundles, including failed calls that may run again.
    runs = place.root.rpartition(f"/{SHARED}/")[0]
    for run in markers:
        if await store.is_there(bundles_prefix(f"{runs}/{run}")):
            return True
    if markers:
        await store.delete([place.held_key(run) for run in markers])
    return False


async def _copy(store: Store, place: SharedPlace, generation: str, to: str) -> bool:
    """Copy data, which renews its age; return whether it existed."""
    try:
        await store.copy(place.data_key(generation), place.data_key(to))
    except ServiceError as error:
        if error.code != NO_SUCH_KEY:
            raise
        return False
    return True


def _checked(piece: Piece, data: Buffer) -> Iterator[bytes]:
    """Yield copies of a value's bytes, and verify their digest.

    Raises:
        FarcallError: The digest does not match. Nothing is stored then, because the error is
            raised
            before the end.
    """
    digest = hashlib.sha256()
    for start in range(0, len(data), _STEP_BYTES):
        step = bytes(data[start : start + _STEP_BYTES])
        digest.update(step)
        yield step
    if digest.digest() != piece.sha256:
        raise FarcallError(
            f"an argument of {piece.size} bytes was changed while it was being sent; do not "
            "change arrays until the calls are submitted, or pass a copy"
        )
