"""Tracked jobs: tasks with waiting callers, and the failures of tracking."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeAlias

from farcall.aws import error_translation
from farcall.config.settings import Settings
from farcall.model import clock
from farcall.model.errors import FarcallError, ServiceError, SettingsError
from farcall.model.jobs import JobDetail
from farcall.model.submission import CommandSubmission, Submission
from farcall.model.timing import Timing
from farcall.storage.store import Arrived

_log = logging.getLogger("farcall")

_NOTHING: Mapping[str, str] = MappingProxyType({})

_LOG_INTERVAL_S = 60.0


@dataclass(frozen=True, slots=True)
class Ended:
    """End of a task without an outcome.

    Attributes:
        detail: Batch's description of the task; None if Batch no longer knows it.
        error: Set if tracking failed and not the task; the job may continue.
    """

    detail: JobDetail | None
    error: FarcallError | None = None


class ClosedError(FarcallError):
    """The tracker was closed while a caller waited; another tracker can track the job."""


class UnseenError(ServiceError):
    """Polling failed for too long; the job continues, and waiting again tracks it."""


Completion: TypeAlias = Arrived | Ended
OnCompletion: TypeAlias = Callable[[int, Completion], None]
IsFull: TypeAlias = Callable[[], bool]


@dataclass(eq=False, slots=True)
class TrackedJob:
    """Tasks of one job with waiting callers. A client can have 10,000 such objects.

    Attributes:
        job: The job. A command job is one task without an outcome.
        settings: Options of the job.
        on_empty: Called when no caller waits any more.
        full: Back-pressure: whether too many known outcomes are waiting to be fetched. None:
            never.
        waiting: Task index to the callbacks of its waiting callers.
        is_whole: Whether all of the job's tasks were tracked.
        detail: Batch's last description of the job, without its environment.
        ended: Finished tasks whose outcome was not found yet, each with its description, or None
            until Batch has described it.
        changed_at: Time of the last observed change.
        poll_at: Time of the next status request.
        failed: Number of failed array tasks at the last listing.
        unseen_since: Time since which Batch does not know the job.
        children_unseen_since: Time since which Batch does not know finished array tasks.
        blocked_since: Time since which Batch reports that it cannot place the job.
        blocked_reported: Whether that was logged.
        stuck: Whether the job was terminated for that reason.
        cancel_at: Time at which its waiting tasks move to the next queue.
        tried: Task index to the number of its attempts that are known to have failed.
    """

    job: Submission | CommandSubmission
    settings: Settings
    on_empty: Callable[[TrackedJob], None]
    full: IsFull | None = None
    waiting: dict[int, tuple[OnCompletion, ...]] = field(default_factory=dict)
    is_whole: bool = False
    detail: JobDetail | None = None
    ended: dict[int, JobDetail | None] = field(default_factory=dict)
    changed_at: float = 0.0
    poll_at: float = math.inf
    failed: int = 0
    unseen_since: float | None = None
    children_unseen_since: float | None = None
    blocked_since: float | None = None
    blocked_reported: bool = False
    stuck: bool = False
    cancel_at: float = math.inf
    tried: dict[int, int] = field(default_factory=dict)

    @property
    def submission(self) -> Submission:
        """The job, if it stores outcomes."""
        assert isinstance(self.job, Submission)  # noqa: S101 - for the type checker
        return self.job

    @property
    def leaves_outcomes(self) -> bool:
        """Whether the job's tasks store outcomes."""
        return isinstance(self.job, Submission)

    @property
    def is_full(self) -> bool:
        """Whether too many known outcomes are waiting to be fetched."""
        return self.full is not None and self.full()

    def deliver(self, index: int, arrival: Completion) -> None:
        """Notify the callers that wait for a task."""
        self.ended.pop(index, None)
        callbacks = self.waiting.pop(index, ())
        for callback in callbacks:
            callback(index, arrival)
        if callbacks and not self.waiting:
            self.on_empty(self)

    def give_up(self, error: FarcallError) -> None:
        """Notify all callers that tracking failed."""
        for index in list(self.waiting):
            self.deliver(index, Ended(None, error))

    def leave(self, callback: OnCompletion) -> None:
        """Remove one caller."""
        for index, callbacks in list(self.waiting.items()):
            left = tuple(other for other in callbacks if other != callback)
            if left:
                self.waiting[index] = left
            else:
                del self.waiting[index]
        if not self.waiting:
            self.on_empty(self)

    def take(self, detail: JobDetail) -> bool:
        """Record Batch's description of the job; a final status is never replaced.

        Returns:
            Whether the status has changed.
        """
        known = self.detail
        if known is not None and known.status.is_final and not detail.status.is_final:
            return False
        # A client may keep 10,000 of these objects, so nothing is stored twice.
        job = self.job
        self.detail = replace(detail, job_id=job.job_id, name=job.name, environment=_NOTHING)
        if detail.status.is_final:
            self.poll_at = math.inf
            if job.size == 1:
                self.ended = {0: detail}
            else:
                self.ended = {index: self.ended.get(index) for index in self.waiting}
        return known is None or known.status is not detail.status


class Trouble:
    """Current failures of the tracker's requests, for display."""

    def __init__(self) -> None:
        self._texts: dict[RetryBudget, str] = {}
        self._logged_at = -math.inf
        self._listeners: list[Callable[[str], None]] = []

    @property
    def text(self) -> str:
        """Failure, remedy and remaining retry time; empty without a failure."""
        return next(iter(self._texts.values()), "")

    def note(self, budget: RetryBudget, error: FarcallError, left_s: float) -> None:
        """Record a failure that is being retried; log it at once and then every minute."""
        is_new = not self._texts
        minutes = max(1, round(left_s / 60))
        text = f"{error}; retrying for {minutes} min"
        self._texts[budget] = text
        if is_new or clock.now() - self._logged_at >= _LOG_INTERVAL_S:
            self._logged_at = clock.now()
            _log.warning("%s", text)
            self._notify()

    def forget(self, budget: RetryBudget) -> None:
        """Record that one poller has stopped."""
        if self._texts.pop(budget, "") and not self._texts:
            self._notify()

    def clear(self, budget: RetryBudget) -> None:
        """Record that a request succeeded."""
        if self._texts.pop(budget, "") and not self._texts:
            _log.warning("AWS responds again; continuing")
            self._notify()

    @contextlib.contextmanager
    def notifying(self, listener: Callable[[str], None]) -> Iterator[None]:
        """Notify a listener of each message while the block runs."""
        self._listeners.append(listener)
        if self._texts:
            listener(self.text)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def _notify(self) -> None:
        for listener in list(self._listeners):
            listener(self.text)


class RetryBudget:
    """Retry budget for the tracker's own requests."""

    def __init__(self, trouble: Trouble, timing: Timing) -> None:
        self._trouble = trouble
        self._timing = timing
        self._failing_since: float | None = None

    def record_success(self) -> None:
        """Record that a request succeeded."""
        self._failing_since = None
        self._trouble.clear(self)

    def end(self) -> None:
        """Record that nothing is left to poll."""
        self._failing_since = None
        self._trouble.forget(self)

    def record_failure(self, error: FarcallError) -> bool:
        """Record a failure; return whether to retry."""
        now = clock.now()
        if self._failing_since is None:
            self._failing_since = now
        left_s = self._failing_since + self._timing.give_up_s - now
        permanent = isinstance(error, SettingsError) or (
            isinstance(error, ServiceError) and error_translation.is_denied(error)
        )
        if permanent or left_s < 0:
            self.end()
            return False
        self._trouble.note(self, error, left_s)
        return True

    def handle_failure(self, error: Exception, jobs: Mapping[str, TrackedJob]) -> None:
        """Record a failure; if it is permanent, notify the waiting callers.

        Args:
            error: Any error, because no caller may wait forever.
            jobs: Jobs that could not be polled.
        """
        if isinstance(error, FarcallError):
            failure = error
        else:
            failure = FarcallError(f"polling for the job's end failed: {error!r}")
            failure.__cause__ = error
        if self.record_failure(failure):
            return
        for job in list(jobs.values()):
            job.give_up(_out_of_sight(failure, job.job))


def _out_of_sight(error: FarcallError, job: Submission | CommandSubmission) -> FarcallError:
    """Return an error that only the wait has ended, with a command to continue it."""
    if not isinstance(error, ServiceError):
        return error
    one = f"{job.job_id}:INDEX" if job.size > 1 else job.job_id
    kept, run, again = "", "", f"farcall logs -f {one}"
    if isinstance(job, Submission):
        kept = ", and its results are kept"
        again = f"farcall result {one}"
        run = (
            f", or `farcall recover {job.where.root.rpartition('/')[2]}` for all jobs of this run"
        )
    text = (
        f"{error}; job {job.job_id} ({job.name}) continues{kept}. When the problem is fixed, "
        f"run `{again}` to wait for it{run}."
    )
    failure = UnseenError(text)
    failure.__dict__.update(error.__dict__)
    failure.__cause__ = error.__cause__
    return failure


def is_unseen(error: BaseException) -> bool:
    """Return whether an error, or its cause, is that a job could not be polled.

    Such a job continues. If a caller stops because of this error, its other jobs continue, too,
    because they have not failed. The same applies if AWS rejects the credentials.
    """
    left: list[BaseException | None] = [error]
    known = set()
    while left:
        each = left.pop()
        if isinstance(each, UnseenError) or (
            isinstance(each, ServiceError) and error_translation.is_of_credentials(each)
        ):
            return True
        if each is not None and id(each) not in known:
            known.add(id(each))
            left += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]
    return False
