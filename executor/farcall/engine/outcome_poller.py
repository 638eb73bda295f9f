"""Outcome poller: lists the outcomes of one run, with as few requests as possible.

An outcome appears in a listing as soon as the container has stored it. A listing returns pages of
1000 keys in text order, from any key on. Known outcomes may still be listed: a failed task's
outcome is kept, and a fetched one is deleted a little later. So each poll starts at the first key
that a caller waits for, and skips the keys up to the next one if they fill more than a page.

https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence

from farcall.engine.tracked_job import Ended, RetryBudget, TrackedJob, Trouble
from farcall.model import clock
from farcall.model.clock import within
from farcall.model.jobs import JobDetail
from farcall.model.timing import Timing
from farcall.storage.store import Store

_log = logging.getLogger("farcall")

_NEAR_TIMES = 5
"""Shortest interval between polls of a local endpoint with few waiting tasks.

It is a multiple of the duration of a poll.
"""

_NEAREST_S = 0.02
_SHARE_AT_FIRST = 0.2
_SHARE_OF_WAIT = 0.01
"""Shares of the time since the last change by which a poll may be late.

1 s after 100 s. The first share applies up to the shortest interval: 0.02 s after 0.1 s, for local
endpoints.
"""

_FEW = 4
"""Maximum number of bundles listed separately, and of large ones at full speed."""

_MANY = 100
"""Number of waiting tasks from which a bundle gets its own poller.

With so many tasks, intervals shorter than for S3 would not find outcomes sooner.
"""


class OutcomePoller:
    """Polls the outcomes of one run.

    Args:
        store: The bucket.
        root: Key prefix of the run.
        on_missing: Called with finished tasks that have no outcome and no description yet.
        trouble: Notified of failed requests.
        timing: Polling intervals.
        on_outcome: Called with job and index of each task whose outcome has arrived.

    Attributes:
        timing: Polling intervals.
    """

    def __init__(
        self,
        store: Store,
        root: str,
        on_missing: Callable[[TrackedJob, list[int]], None],
        trouble: Trouble,
        timing: Timing,
        on_outcome: Callable[[str, int], object] = lambda _job_id, _index: None,
    ) -> None:
        self.on_outcome = on_outcome
        self.timing = timing
        self.store = store
        self.root = root
        self.on_missing = on_missing
        self.trouble = trouble
        self.tasks: set[asyncio.Task[None]] = set()
        self._small = _Lister(self, _NEAREST_S)  # the endpoint's latency is not known yet
        self._large: dict[str, _Lister] = {}

    @property
    def slowdown(self) -> float:
        """Slow-down factor that keeps all listers together within the request budget."""
        return max(1.0, len(self._large) / _FEW)

    def add(self, job: TrackedJob) -> None:
        """Poll the outcomes of a tracked job, which may have been polled before."""
        bundle = job.submission.where.bundle
        lister = self._large.get(bundle, self._small)
        if lister is self._small and len(job.waiting) > _MANY:
            self._small.jobs.pop(bundle, None)
            lister = self._large[bundle] = _Lister(self, self.timing.outcome_pause_s)
        lister.jobs[bundle] = job
        lister.poll_soon()
        lister.start()

    def poll_soon(self, job: TrackedJob) -> None:
        """Poll soon, because a change is expected."""
        self._large.get(job.submission.where.bundle, self._small).poll_soon()

    def forget(self, job: TrackedJob) -> None:
        """Stop polling a job."""
        bundle = job.submission.where.bundle
        lister = self._large.pop(bundle, self._small)
        lister.jobs.pop(bundle, None)
        if not lister.jobs:
            lister.poll_soon()  # so that it exits

    async def close(self) -> None:
        """Stop polling."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


class _Lister:
    """Polls at one rate: all small bundles of a run, or one large bundle.

    Attributes:
        jobs: Tracked jobs by bundle.
    """

    def __init__(self, poller: OutcomePoller, first_s: float) -> None:
        self.jobs: dict[str, TrackedJob] = {}
        self._poller = poller
        self._changed_at = clock.now()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._least_s = first_s
        self._longest_s = self._pause_s = poller.timing.outcome_pause_s
        self._budget = RetryBudget(poller.trouble, poller.timing)

    def poll_soon(self) -> None:
        self._changed_at = clock.now()
        self._wake.set()

    def start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())
            self._poller.tasks.add(self._task)
            self._task.add_done_callback(self._poller.tasks.discard)

    async def _run(self) -> None:
        while self.jobs:
            await self._pause()
            try:
                await self._poll()
                self._budget.record_success()
            except Exception as error:  # no caller may wait forever because of a bug
                self._budget.handle_failure(error, self.jobs)
        self._budget.end()

    async def _pause(self) -> None:
        least_s = self._least_s * self._poller.slowdown
        await asyncio.sleep(least_s)
        in_vain_s = clock.now() - self._changed_at
        late_s = max(min(self._pause_s, _SHARE_AT_FIRST * in_vain_s), _SHARE_OF_WAIT * in_vain_s)
        wait_s = min(self._longest_s, late_s) - least_s
        if wait_s <= 0:  # or a change was announced meanwhile
            return
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            await within(wait_s, self._wake.wait())

    async def _poll(self) -> None:
        """Deliver the outcomes that have arrived, then the ends of tasks without one."""
        wanted = {bundle: job for bundle, job in self.jobs.items() if not job.is_full}
        self._least_s = self._pause_s
        if not wanted:
            self._changed_at = clock.now()  # the fetchers are busy and will need more
            return
        self._longest_s = min(job.settings.poll_freq for job in wanted.values())
        # Copied before the listing. S3 lists everything that was stored before the request, so a
        # task that is known to have ended and is not in the listing has no outcome.
        ended = [(job, dict(job.ended)) for job in wanted.values() if job.ended]
        parts = {"": wanted}
        if len(wanted) <= _FEW:
            parts = {bundle: {bundle: job} for bundle, job in wanted.items()}
        begin = clock.now()
        pages = [await self._list(bundle, part) for bundle, part in parts.items()]
        self._least_s = self._shortest_s(wanted, pages, clock.now() - begin)
        for job, ends in ended:
            if not job.is_full:  # otherwise the listing may have stopped early
                self._deliver_ends(job, ends)

    def _shortest_s(
        self, wanted: Mapping[str, TrackedJob], pages: Sequence[int], took_s: float
    ) -> float:
        """Return the minimum interval after a poll, by its number of pages per part."""
        far_s = max(1, *pages) * self._pause_s
        is_near = took_s < sum(pages) * self._poller.timing.near_s
        if not is_near or sum(len(job.waiting) for job in wanted.values()) > _MANY:
            return far_s
        return min(far_s, max(_NEAREST_S, _NEAR_TIMES * took_s))

    async def _list(self, bundle: str, wanted: Mapping[str, TrackedJob]) -> int:
        """List one bundle, or all bundles; return the number of pages."""
        pages = 0
        last, key = "", _first(wanted, "")
        while key:
            # Other programs may have added any number of keys between the two.
            start = max(_before(key), last)
            page, last = await self._poller.store.list_outcomes(self._poller.root, bundle, start)
            pages += 1
            now = clock.now()
            for arrived in page:
                job = wanted.get(arrived.bundle)
                if job is not None and arrived.index in job.waiting:
                    self._changed_at = now
                    self._poller.on_outcome(job.job.job_id, arrived.index)
                    job.deliver(arrived.index, arrived)
            if last <= start or all(job.is_full for job in wanted.values()):
                break
            key = _first(wanted, last)
        return pages

    def _deliver_ends(self, job: TrackedJob, ends: dict[int, JobDetail | None]) -> None:
        missing = []
        for index, detail in ends.items():
            if index not in job.waiting:
                continue
            if detail is not None:
                self._changed_at = clock.now()
                job.deliver(index, Ended(detail))
            else:
                job.ended.pop(index, None)
                missing.append(index)
        if missing:
            self._poller.on_missing(job, missing)


def _first(wanted: Mapping[str, TrackedJob], after: str) -> str:
    """Return the first awaited key after another key, or an empty string."""
    keys = (f"{bundle}/{i}" for bundle, job in wanted.items() for i in job.waiting)
    return min((key for key in keys if key > after), default="")


def _before(key: str) -> str:
    """Return a start for a listing that includes a key and few keys before it.

    ``b/12~`` is after ``b/129`` and most keys that other programs might add there, but before
    ``b/13``; ``b/1/~`` is before ``b/10``.
    """
    stem, last = key[:-1], key[-1]
    return stem if stem.endswith("/") and last == "0" else f"{stem}{chr(ord(last) - 1)}~"
