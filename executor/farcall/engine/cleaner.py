"""Deletion of a task's objects after its result was collected.

A bundle is deleted with the last of its tasks. If a task failed, its objects are kept for
diagnosis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from farcall.model.settings import Settings
from farcall.model.submission import Submission
from farcall.model.timing import Timing
from farcall.storage.store import Store
from farcall.storage.stores import Stores
from farcall_runtime.contract import Location


class Cleaner:
    """Deletes the objects of tasks that were submitted in one session.

    Args:
        stores: The buckets.
        timing: Contains the maximum number of bundles that are counted.
        on_deleted: Called with the location of each deleted bundle.
        on_failed: Called with a bundle's location for each of its tasks that failed.
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
        self._output: dict[Store, list[str]] = {}  # not fetched, and still available
        self._left: dict[str, tuple[int, bool]] = {}  # by bundle: tasks, and whether all succeeded

    def record_submission(self, submission: Submission) -> None:
        """Count the tasks of a submitted job, to delete its bundle with the last one."""
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
    ) -> None:
        """Delete the objects of a collected task, if all of its calls succeeded.

        If the process is killed before that, `farcall.BatchExecutor.recover` finds the objects
        again.

        Args:
            settings: Options of the job.
            submission: The task's job.
            index: Index of the task.
            spent: Keys of objects to delete; see `farcall.engine.fetcher.Delivered`.
            output: Keys of output that can still be requested, until the session closes.
        """
        bundle = submission.where.bundle_key
        store = self._stores.of(submission.where.bucket)
        spent = [] if settings.keep_artifacts else spent
        if spent:
            store.delete_delivered(submission, index, spent)
            if output:
                self._output.setdefault(store, []).extend(output)
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

    def close(self) -> None:
        """Delete the output that was not fetched."""
        for store, keys in self._output.items():
            store.delete_later(keys)
        self._output.clear()
