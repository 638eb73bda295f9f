"""Joblib backend: batches of ``Parallel`` as calls of a `BatchPoolExecutor`."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from joblib.parallel import (
    BatchedCalls,
    FallbackToBackend,
    ParallelBackendBase,
    SequentialBackend,
    ThreadingBackend,
)

from farcall.client.arguments import check_chunksize
from farcall.client.pool import BatchPoolExecutor
from farcall.config.settings import Settings
from farcall.model.errors import SettingsError

_ALL_JOBS = 10_000
"""Value of ``n_jobs=-1``: the maximum size of an array, because Batch has no workers."""

_MOST_CALLS = 100_000
"""Number of parallel calls reported to joblib, which supports at most a million."""

_JOBLIBS_OWN = {"context", "max_nbytes", "mmap_mode", "temp_folder", "verbose"}
"""Options that `joblib.Parallel` passes to every backend, for local processes."""

_Done = Callable[[Any], object]
_Part = tuple["Future[list[Any]]", slice]


class AWSBatchBackend(ParallelBackendBase):  # type: ignore[misc]  # joblib has no types
    """Joblib backend that runs the calls of `joblib.Parallel` as AWS Batch jobs.

    ``n_jobs`` is the maximum number of concurrent jobs on Batch. If it is not given or negative,
    there is no limit; ``n_jobs=1`` runs everything locally, as with every backend.
    The first failed call, a timeout and Ctrl-C cancel all jobs of the ``Parallel`` call. So does
    dropping the generator of ``return_as="generator"``.

    A ``Parallel`` call inside a job runs there, with one thread per vCPU of the job.

    Arguments are uploaded with each job. Data that many calls share, such as the data of a
    cross-validation, are stored and loaded once per job.

    Args:
        nesting_level: Nesting depth of backends, set by joblib.
        inner_max_num_threads: Option of joblib, which rejects it for this backend.
        chunksize: Number of calls in one job, which run one after the other in one process. This
            is cheaper for short calls, because a job costs the start of a container.
        **options: See `farcall.Settings`.

    Raises:
        SettingsError: A value is wrong, or an option is unknown.
    """

    default_n_jobs = -1  # joblib's default of 1 would run everything locally
    supports_retrieve_callback = True

    def __init__(
        self,
        nesting_level: int | None = None,
        inner_max_num_threads: int | None = None,
        *,
        chunksize: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(nesting_level, inner_max_num_threads, chunksize=chunksize, **options)
        check_chunksize(chunksize)
        self._chunksize = chunksize
        self._settings = Settings(**options)
        if self._settings.nodes > 1:
            raise SettingsError(
                f"nodes is {self._settings.nodes}; use 1 with joblib, which needs one result per "
                "call: a multi-node call has one per node",
                option="nodes",
            )
        self._pool: BatchPoolExecutor | None = None
        self._callbacks = _callback_thread()
        self._lock = threading.Lock()
        self._chunk: list[tuple[BatchedCalls, _Done]] = []
        self._unfinished: set[Future[list[Any]]] = set()
        self._is_aborted = False

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return the maximum number of concurrent calls; scikit-learn splits work by it.

        Raises:
            ValueError: ``n_jobs`` is 0.
        """
        if n_jobs == 0:
            raise ValueError("n_jobs is 0; use a number of jobs, or -1 for no limit")
        if n_jobs == 1:
            return 1
        return min(self._chunksize * (_limit(n_jobs) or _ALL_JOBS), _MOST_CALLS)

    def configure(
        self,
        n_jobs: int = 1,
        parallel: object = None,
        prefer: str | None = None,
        require: str | None = None,
        **keywords: Any,
    ) -> int:
        """Prepare for a ``Parallel`` call; return the maximum number of concurrent calls.

        Raises:
            SettingsError: An option of `joblib.Parallel` is wrong or unknown.
            FallbackToBackend: The call gets its own backend, because it has its own options, or
                because another call is running, such as one whose generator is being read.
        """
        options = {name: value for name, value in keywords.items() if name not in _JOBLIBS_OWN}
        options = {**self.backend_kwargs, **options}
        if options != self.backend_kwargs or self._pool is not None:
            raise FallbackToBackend(AWSBatchBackend(self.nesting_level, **options))
        count = self.effective_n_jobs(n_jobs)
        if count > 1:
            self._pool = BatchPoolExecutor(_limit(n_jobs), settings=self._settings)
            self._callbacks = _callback_thread()
        return count

    def start_call(self) -> None:
        """Accept batches, also after an aborted call."""
        self._is_aborted = False

    def submit(self, func: BatchedCalls, callback: _Done) -> None:
        """Run a batch, and pass the argument of `retrieve_result_callback` to `callback`."""
        with self._lock:
            self._chunk.append((func, callback))
            if sum(len(batch) for batch, _ in self._chunk) >= self._chunksize:
                self._send()

    @contextmanager
    def retrieval_context(self) -> Iterator[None]:
        """Submit the last calls, which are too few for a chunk."""
        with self._lock:
            self._send()
        yield

    def retrieve_result_callback(self, out: _Part) -> list[Any]:
        """Return a batch's results, or raise its error."""
        future, part = out
        return future.result()[part]

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Cancel all jobs, and accept no more batches of this call."""
        with self._lock:
            self._is_aborted = True
            self._chunk.clear()
            unfinished = list(self._unfinished)
        for future in unfinished:
            future.cancel()

    def terminate(self) -> None:
        """Wait until all jobs have finished; unfinished ones were cancelled before."""
        if self._pool is not None:
            self._pool.shutdown()
            self._callbacks.shutdown(wait=False)
            self._pool = None

    def get_nested_backend(self) -> tuple[ParallelBackendBase, int | None]:
        """Return joblib's own backend for use in a job, because the image lacks farcall."""
        level = (self.nesting_level or 0) + 1
        if self._settings.vcpu < 2:
            return SequentialBackend(nesting_level=level), None
        return ThreadingBackend(nesting_level=level), int(self._settings.vcpu)

    def _send(self) -> None:
        """Submit the waiting batches as one call."""
        batches, self._chunk = self._chunk, []
        if not batches or self._is_aborted or self._pool is None:
            return
        items = [item for batch, _ in batches for item in batch.items]
        name = getattr(items[0][0], "__name__", "task")
        calls = BatchedCalls(items, self.get_nested_backend())
        future = self._pool.submit(_caller(name), calls)
        self._unfinished.add(future)
        future.add_done_callback(functools.partial(self._record_end, batches))

    def _record_end(
        self, batches: list[tuple[BatchedCalls, _Done]], future: Future[list[Any]]
    ) -> None:
        self._unfinished.discard(future)
        with suppress(RuntimeError):  # the Parallel call is over
            self._callbacks.submit(self._hand_over, batches, future)

    def _hand_over(
        self, batches: list[tuple[BatchedCalls, _Done]], future: Future[list[Any]]
    ) -> None:
        """Notify joblib of each finished batch, so that it submits others."""
        start = 0
        for batch, done in batches:
            done((future, slice(start, start := start + len(batch))))
        with self._lock:
            self._send()


def _limit(n_jobs: int | None) -> int | None:
    return None if n_jobs is None or n_jobs < 0 else n_jobs


def _callback_thread() -> ThreadPoolExecutor:
    """Return the thread pool that notifies joblib of finished batches.

    joblib acquires a lock for that, which it also holds while it reads the user's generator.
    """
    return ThreadPoolExecutor(1, "farcall-joblib")


@functools.lru_cache
def _caller(name: str) -> Callable[[BatchedCalls], list[Any]]:
    """Return a function that calls a batch; its name becomes the jobs' name."""
    caller = functools.partial(BatchedCalls.__call__)
    caller.__name__ = name  # type: ignore[attr-defined]
    return caller
