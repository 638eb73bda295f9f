"""Peak memory of the tasks of an array that succeeded, for whoever looks at it, in few requests.

Whoever takes a task's value tells its peak in a receipt before the outcome is deleted: one object
has those of all tasks. Where nobody takes values the outcomes are still there, a request each, and
of very many a sample is read. What comes of an outcome's first bytes nobody has verified, so it is
shown and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from dataclasses import dataclass, field

from farcall.engine.session import Session
from farcall.model import clock
from farcall.model.errors import FarcallError
from farcall.model.jobs import JobDetail
from farcall.model.submission import Submission
from farcall.storage.store import Store
from farcall.storage.usage import is_memory
from farcall_runtime import envelope
from farcall_runtime.envelope import Buffer

MOST_OUTCOMES = 300
"""Of an array's outcomes so many are read at most, each once."""

_AT_ONCE = 50
_PARALLEL = 16
_HEAD_BYTES = 16 * 1024
"""An outcome tells of its task in its first bytes; of one of hundreds of calls in more."""

_RECEIPTS_S = 10.0
"""So often receipts are read while an array goes on."""

_MOST_RECEIPTS = 4
"""Each client that takes values of an array has one."""

_LARGEST_RECEIPT_BYTES = 64 * 1024
_MOST_ARRAYS = 30


@dataclass
class _Array:
    """What is known of one array.

    Attributes:
        peaks: The peak memory in bytes, by index.
        asked: The children whose outcomes were asked for.
        read_at: When receipts were read last.
        is_taken: Whether there was one: somebody takes the values.
        is_read: Whether they were read since the array has ended.
        is_over: Whether there is nothing more to be read.
    """

    peaks: dict[int, int] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)
    read_at: float = float("-inf")
    is_taken: bool = False
    is_read: bool = False
    is_over: bool = False


class Peaks:
    """Reads them, on one event loop, and remembers those of the arrays asked about last."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._places = asyncio.Semaphore(_PARALLEL)
        self._arrays: dict[str, _Array] = {}

    def of(self, parent_id: str) -> dict[int, int]:
        """Return what is known of an array: peak memory in bytes, by index."""
        array = self._arrays.get(parent_id)
        return array.peaks if array is not None else {}

    def are_left(self, parent: JobDetail, succeeded: Collection[int]) -> bool:
        """Tell whether `read` would ask for more."""
        array = self._arrays.get(parent.job_id)
        return bool(succeeded) if array is None else bool(_due(array, parent, succeeded))

    async def read(self, parent: JobDetail, succeeded: Collection[int]) -> list[int]:
        """Read some; return the indexes of children of which the peak is known now."""
        array = self._arrays.pop(parent.job_id, None) or _Array()
        self._arrays[parent.job_id] = array
        while len(self._arrays) > _MOST_ARRAYS:
            del self._arrays[next(iter(self._arrays))]
        before = set(array.peaks)
        if not _due(array, parent, succeeded):
            return []
        try:
            submission = Submission.whole(parent)
        except FarcallError:
            array.is_over = True
            return []
        store = self._session.stores.of(submission.where.bucket)
        if _are_receipts_due(array, parent):
            await self._read_receipts(array, parent, store, submission)
        await self._read_outcomes(array, parent, succeeded, store, submission)
        return sorted(array.peaks.keys() - before)

    async def _read_receipts(
        self, array: _Array, parent: JobDetail, store: Store, submission: Submission
    ) -> None:
        array.read_at, array.is_read = clock.now(), parent.status.is_final
        try:
            found = await receipts(store, submission)
        except FarcallError:  # a user who lists jobs may lack the right to read receipts
            return
        for data, key in found:
            with contextlib.suppress(envelope.EnvelopeError):  # another client's
                said = envelope.receipted_peaks(submission.key, key, data, submission.size)
                array.is_taken = True
                array.peaks.update(said)

    async def _read_outcomes(
        self,
        array: _Array,
        parent: JobDetail,
        succeeded: Collection[int],
        store: Store,
        submission: Submission,
    ) -> None:
        if array.is_taken and not parent.status.is_final:
            return  # the next receipt tells of them
        room = min(_AT_ONCE, MOST_OUTCOMES - len(array.asked))
        unread = [n for n in succeeded if n not in array.peaks and n not in array.asked]
        some = sorted(unread, key=_spread)[:room]
        array.asked.update(some)
        found = await asyncio.gather(*(self._peak(store, submission, n) for n in some))
        array.peaks.update({n: peak for n, peak in zip(some, found, strict=True) if peak})
        if some and not any(found) and parent.status.is_final:
            array.is_over = True  # their values were taken, and all is deleted

    async def _peak(self, store: Store, submission: Submission, index: int) -> int:
        try:
            async with self._places:
                key = submission.where.outcome_key(index)
                start = await store.get_start(key, _HEAD_BYTES)
            said = envelope.outcome_head(start)["usage"] if start is not None else {}
            peak = said.get("peak_memory_bytes")
        except (envelope.EnvelopeError, FarcallError, LookupError, AttributeError, TypeError):
            return 0
        return peak if isinstance(peak, int) and is_memory(peak) else 0


async def receipts(store: Store, submission: Submission) -> list[tuple[Buffer, str]]:
    """Return the receipts of a bundle that clients have left, each with its key; unverified.

    Raises:
        FarcallError: They cannot be read.
    """
    found: list[tuple[Buffer, str]] = []
    for number in range(_MOST_RECEIPTS):
        key = submission.where.receipt_key(number)
        got = await store.get_dated(key, most=_LARGEST_RECEIPT_BYTES)
        if got is None:
            break
        found.append((got[0], key))
    return found


def _are_receipts_due(array: _Array, parent: JobDetail) -> bool:
    is_last = parent.status.is_final and not array.is_read
    return is_last or (not parent.status.is_final and array.read_at + _RECEIPTS_S <= clock.now())


def _due(array: _Array, parent: JobDetail, succeeded: Collection[int]) -> bool:
    if array.is_over or all(index in array.peaks for index in succeeded):
        return False
    if _are_receipts_due(array, parent):
        return True
    if array.is_taken and not parent.status.is_final:
        return False
    if len(array.asked) >= MOST_OUTCOMES:
        return False
    return any(n not in array.peaks and n not in array.asked for n in succeeded)


def _spread(index: int) -> int:
    """Return by what to sort indexes so that the first ones are spread over all of them.

    Arguments that go up with the index are no rare thing.
    """
    return index * 2654435761 % 2**32
