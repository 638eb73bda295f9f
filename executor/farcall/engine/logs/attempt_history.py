"""Attempt history: a task's attempts, their ends and outputs."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta, timezone

from farcall.backends.base import Log
from farcall.engine.delivered import Delivered
from farcall.engine.logs.transcript import Transcript
from farcall.engine.session import Session
from farcall.model import clock, failure_reasons
from farcall.model.errors import FarcallError
from farcall.model.failure_reasons import About
from farcall.model.jobs import Attempt, JobDetail, JobStatus
from farcall.model.names import counted
from farcall.model.submission import Submission
from farcall.storage import outcomes
from farcall.storage.chunks import Chunks, Written
from farcall_runtime import envelope

_JUST_NOW = timedelta(seconds=30)


class AttemptHistory:
    """The attempts of one task.

    Args:
        find: Returns the running event loop's session, again if it was closed meanwhile.
        session: The current session.
        submission: The task's job.
        index: The task's index in the job.
        detail: Batch's description of the task.
        kept: Returns the data that this process has taken from the bucket, if any.

    Attributes:
        timing: Polling intervals.
        detail: Batch's latest description.
        kept: Returns the data that this process has taken from the bucket, if any.
        store: The bucket.
        submission: The task's job.
        index: The task's index in the job.
        chunks: The task's chunks.
    """

    def __init__(
        self,
        find: Callable[[], Awaitable[Session]],
        session: Session,
        submission: Submission,
        index: int,
        detail: JobDetail,
        kept: Callable[[], Delivered | None] = lambda: None,
    ) -> None:
        self.timing = session.timing
        self.detail = detail
        self.kept = kept
        self._find = find
        self._backend = session.backend
        self.store = session.stores.of(submission.where.bucket)
        self.submission = submission
        self.index = index
        self.chunks = Chunks(self.store, submission, index)
        self._final: Written | None = None
        self._asked_at = clock.now()
        self._is_forgotten = False

    def last(self) -> int:
        """Return the number of the latest attempt, which may be about to start."""
        detail = self.detail
        return max(1, detail.attempts) if detail.status.is_final else detail.attempts + 1

    def check(self, attempt: int, *, follow: bool) -> None:
        """Check that an attempt exists or may still start.

        Raises:
            FarcallError: The attempt does not exist.
        """
        detail, last = self.detail, self.last()
        most = detail.attempts_allowed if follow and not detail.status.is_final else last
        if attempt > most:
            may = "may have" if most > last else "has had"
            raise FarcallError(
                f"attempt {attempt} does not exist: job {detail.job_id} {may} "
                f"{counted(most, 'attempt')}"
            )

    def goes_on(self, number: int, *, follow: bool) -> bool:
        """Return whether another attempt follows, or may follow, a finished one."""
        if self._is_forgotten or (self._final is not None and self._final.attempt <= number):
            return False
        kept = self.kept()
        if kept is not None:
            return number < kept.attempt
        if follow and not self.detail.status.is_final:
            self._asked_at = -math.inf  # Batch may now know whether another attempt follows
            return True
        return number < self.last()

    async def is_over(self, number: int) -> bool:
        """Return whether an attempt has finished.

        Raises:
            IntegrityError: Its stored outcome is not what the container wrote.
            ServiceError: AWS refused a call.
        """
        if self.kept() is not None or self._has_ended(number):
            return True
        if clock.now() - self._asked_at >= self.timing.attempts_pause_s:
            await self.ask()
        return self._has_ended(number) or await self.ending(number) is not None

    async def ask(self) -> None:
        """Describe the job again. A job that Batch has forgotten has finished.

        Raises:
            ServiceError: Batch refused the call.
        """
        self._asked_at = clock.now()
        session = await self._find()
        detail = await session.detail(self.submission.id_of(self.index))
        if detail is not None:
            self.detail = detail
        self._is_forgotten = detail is None

    def _has_ended(self, number: int) -> bool:
        is_final = self._final is not None and self._final.attempt <= number
        is_final = is_final or self._is_forgotten
        return is_final or self.detail.status.is_final or self.detail.attempts >= number

    async def ending(self, number: int) -> Written | None:
        """Return an attempt's outcome; None if it is missing or was deleted.

        Raises:
            IntegrityError: It is not what the container wrote.
            ServiceError: S3 refused a request.
        """
        submission, index = self.submission, self.index
        if self._final is None and not submission.is_other_node(index):
            self._final = await self._open(submission.where.outcome_key(index))
        if self._final is not None and self._final.attempt == number:
            return self._final
        return await self._open(submission.attempt_key(index, number))

    async def _open(self, key: str) -> Written | None:
        try:
            found = await outcomes.fetch(self.store, self.submission, key)
        except envelope.EnvelopeError as error:
            about = About(self.detail.job_id, self.detail.name)
            raise failure_reasons.unusable(error).error(about) from error
        if found is None:
            return None
        return Written.of(self.submission, self.index, found.outcome, found.at)

    def tried(self, number: int) -> Attempt:
        """Return Batch's description of an attempt; None for a running one."""
        tried = self.detail.tried
        return tried[number - 1] if number <= len(tried) else Attempt()

    def transcript(self, number: int) -> Transcript:
        """Return the output of an attempt, still unread."""
        cut_bytes = self._backend.capabilities.longest_log_line_bytes
        return Transcript(self.chunks, number, self.timing, cut_bytes)

    def log(self, number: int) -> Log:
        """Return the platform's log of an attempt; for a running attempt, the job's."""
        stream = self.tried(number).log_stream
        detail = self.detail
        if number == detail.attempts + 1 and detail.status is JobStatus.RUNNING:
            known = {tried.log_stream for tried in detail.tried}
            stream = "" if detail.log_stream in known else detail.log_stream
        return self._backend.log(detail.log_group, stream)

    def has_just_ended(self) -> bool:
        """Return whether the job ended so recently that CloudWatch may lack output."""
        stopped = self.detail.stopped_at
        return stopped is not None and not _is_past(stopped + _JUST_NOW)


def _is_past(moment: datetime) -> bool:
    return moment < datetime.now(timezone.utc)
