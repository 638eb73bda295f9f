"""Garbage collector of the bucket: deletes what a task left there, once its owner has the value.

A bundle goes when the last of its tasks does: they are counted. Where a task went wrong nothing of
it is deleted, so whoever looks into that finds all there was.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import weakref
from collections.abc import Callable, Sequence

from farcall.model.settings import Settings
from farcall.model.submission import Submission
from farcall.model.timing import Timing
from farcall.storage.store import Store
from farcall.storage.stores import Stores
from farcall_runtime.contract import Location

# --- Weak references to holders of objects: what nobody can ask for any more is deleted ---------


class Held:
    """What is in the bucket for the sake of those who hold on to a job, on one event loop."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._held: dict[int, tuple[Store, list[str]]] = {}

    def hold(self, holder: object, store: Store, keys: list[str]) -> None:
        """Keep objects until their holder is gone."""
        number = next(self._numbers)
        self._held[number] = store, keys
        loop = asyncio.get_running_loop()
        weakref.finalize(holder, _tell, weakref.ref(self), loop, number).atexit = False

    def let_go(self) -> None:
        """Have all of them deleted."""
        for number in list(self._held):
            self._release(number)

    def _release(self, number: int) -> None:
        if number in self._held:
            store, keys = self._held.pop(number)
            store.delete_later(keys)


def _tell(reference: weakref.ref[Held], loop: asyncio.AbstractEventLoop, number: int) -> None:
    """Have objects deleted by the event loop: a holder may come to its end in any thread."""
    held = reference()
    if held is not None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it the session
            loop.call_soon_threadsafe(held._release, number)


_MOST_MEMORY_BYTES = 2**50
"""A pebibyte: more than any machine has."""


class Cleaner:
    """Deletes the objects of tasks that were submitted in one session.

    Args:
        stores: The buckets.
        timing: How many bundles are counted.
        on_deleted: Is told of a bundle that is of no more use.
        on_failed: Is told of a bundle of which a task failed, for each of these.
    """

    def __init__(
        self,
        stores: Stores,
        timing: Timing,
        on_deleted: Callable[[Location], object],
        on_failed: Callable[[Location], object],
    ) -> None:
        self._stores = stores
        self._timing = timing
        self._on_deleted = on_deleted
        self._on_failed = on_failed
        self._held = Held()
        self._left: dict[str, tuple[int, bool]] = {}  # by bundle: tasks, and whether all went well

    def note_submission(self, submission: Submission) -> None:
        """Count the tasks of a job submitted here, to know when its bundle is of no more use."""
        self._left.setdefault(submission.where.bundle_key, (submission.size, True))
        if len(self._left) > self._timing.most_undelivered:
            del self._left[next(iter(self._left))]

    def discard(
        self,
        settings: Settings,
        submission: Submission,
        index: int,
        spent: list[str],
        output: Sequence[str] = (),
        holder: object | None = None,
        peak_bytes: int = 0,
    ) -> None:
        """Have the objects of a task deleted whose result its owner has, where all went well.

        Whoever is killed before finds them again; see `farcall.BatchExecutor.recover`.

        Args:
            settings: The options it was made with.
            submission: Its job.
            index: Its number there.
            spent: Keys of what is of no more use; see `farcall.engine.delivered.Delivered`.
            output: Keys of output that may still be asked for.
            holder: By whom: it stays as long as this lives and the session is open.
            peak_bytes: The task's peak memory.
        """
        bundle = submission.where.bundle_key
        store = self._stores.of(submission.where.bucket)
        spent = [] if settings.keep_artifacts else spent
        if spent:
            is_plausible = type(peak_bytes) is int and 0 <= peak_bytes <= _MOST_MEMORY_BYTES
            peak = peak_bytes if is_plausible else 0
            store.delete_delivered(submission, index, spent, peak)
            if output and holder is not None:
                self._held.hold(holder, store, list(output))
        else:
            self._on_failed(submission.where)
        if bundle in self._left:
            left, well = self._left.pop(bundle)
            left, well = left - 1, well and bool(spent)
            if left:
                self._left[bundle] = left, well
            else:
                store.end_bundle(submission.where, delete=well)
                if well:
                    self._on_deleted(submission.where)

    def let_go(self) -> None:
        """Have the output deleted that is still held."""
        self._held.let_go()
