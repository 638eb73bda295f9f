"""Attempt history: which attempts of a task there are, which are over, and what they left."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta, timezone

from farcall.backends.base import Log
from farcall.engine.delivered import Delivered
from farcall.engine.logs.transcript import Transcript
from farcall.engine.session import Session
from farcall.model import clock, endings
from farcall.model.endings import About
from farcall.model.errors import FarcallError
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
        find: Gives the running event loop's session, again where it was closed meanwhile.
        session: That of now.
        submission: The task's job.
        index: Its number there.
        detail: What Batch says of it.
        kept: Tells what this process itself has taken from the bucket, if it has.

    Attributes:
        timing: How often is looked and asked.
        detail: What Batch said last.
        kept: The same as the argument.
        store: The bucket.
        submission: The task's job.
        index: Its number there.
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
        """Return the number of the last attempt there is up to now, or is about to be."""
        detail = self.detail
        return max(1, detail.attempts) if detail.status.is_final else detail.attempts + 1

    def check(self, attempt: int, *, follow: bool) -> None:
        """See that there is such an attempt, or that there may be one.

        Raises:
            FarcallError: There is none.
        """
        detail, last = self.detail, self.last()
        most = detail.attempts_allowed if follow and not detail.status.is_final else last
        if attempt > most:
            may = "may have" if most > last else "has had"
            raise FarcallError(
                f"attempt is {attempt}, and job {detail.job_id} {may} {counted(most, 'attempt')}"
            )

    def goes_on(self, number: int, *, follow: bool) -> bool:
        """Return whether there is another attempt, or may be, after one that is over."""
        if self._is_forgotten or (self._final is not None and self._final.attempt <= number):
            return False
        kept = self.kept()
        if kept is not None:
            return number < kept.attempt
        if follow and not self.detail.status.is_final:
            self._asked_at = -math.inf  # Batch may know by now whether another one follows
            return True
        return number < self.last()

    async def is_over(self, number: int) -> bool:
        """Return whether an attempt is over.

        Raises:
            IntegrityError: What it stored at its end is not what the container wrote.
            ServiceError: AWS refused a call.
        """
        if self.kept() is not None or self._has_ended(number):
            return True
        if clock.now() - self._asked_at >= self.timing.attempts_pause_s:
            await self.ask()
        return self._has_ended(number) or await self.ending(number) is not None

    async def ask(self) -> None:
        """Ask Batch for the job again. What it has forgotten is over.

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
        """Return what an attempt stored at its end; None if it is not there, or no longer.

        Raises:
            IntegrityError: It is not what the container wrote.
            ServiceError: S3 refused.
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
            raise endings.unusable(error).error(about) from error
        if found is None:
            return None
        return Written.of(self.submission, self.index, found.outcome, found.at)

    def tried(self, number: int) -> Attempt:
        """Return what Batch says of an attempt; of one that goes on that is nothing."""
        tried = self.detail.tried
        return tried[number - 1] if number <= len(tried) else Attempt()

    def transcript(self, number: int) -> Transcript:
        """Return the output of an attempt, of which nothing was read yet."""
        cut_bytes = self._backend.capabilities.longest_log_line_bytes
        return Transcript(self.chunks, number, self.timing, cut_bytes)

    def log(self, number: int) -> Log:
        """Return the platform's own log of an attempt; that of one that goes on is the job's."""
        stream = self.tried(number).log_stream
        detail = self.detail
        if number == detail.attempts + 1 and detail.status is JobStatus.RUNNING:
            known = {tried.log_stream for tried in detail.tried}
            stream = "" if detail.log_stream in known else detail.log_stream
        return self._backend.log(detail, stream)

    def has_just_ended(self) -> bool:
        """Return whether the job has ended so lately that CloudWatch may not show it all."""
        stopped = self.detail.stopped_at
        return stopped is not None and not _is_past(stopped + _JUST_NOW)


def _is_past(moment: datetime) -> bool:
    return moment < datetime.now(timezone.utc)
