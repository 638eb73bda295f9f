"""Calls and failure reasons of jobs, for lists of many jobs.

The texts of calls are in the bundle, one or two requests for all tasks of an array job. A task's
error is in its outcome, one request each, which is used only if it is signed with the job's own
key. Nothing is unpickled. Without an outcome, Batch's status reason is used.

Final results are cached, so that showing a list again needs no requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from farcall.aws import error_translation
from farcall.engine.session import Session
from farcall.model import failure_reasons
from farcall.model.errors import FarcallError, JobCancelledError, ServiceError
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.submission import Submission
from farcall.operations.catalog import Entry, Why
from farcall.payload import call_texts, results
from farcall.payload.error_texts import Groups, Reason
from farcall.storage import bundles, outcomes
from farcall_runtime import envelope
from farcall_runtime.contract import ENV_BUNDLE, ENV_DIGEST, OutcomeStatus

_PARALLEL = 32
_MOST_READ = 100
"""Maximum failed tasks of an array job whose outcomes are read for its groups."""

_MOST_TEXTS = 200_000
_MOST_REASONS = 20_000
"""Maximum cached entries, each of up to 200 characters."""


class Reasons:
    """Cache of calls and errors, on one event loop."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._places = asyncio.Semaphore(_PARALLEL)
        self._texts: dict[str, list[str]] = {}
        self._reading: dict[str, asyncio.Future[list[str]]] = {}
        self._reasons: dict[str, Reason] = {}
        self._groups: dict[str, Groups] = {}
        self._troubles: dict[str, str] = {}

    async def fill(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return jobs with their calls and errors.

        Raises:
            ServiceError: Batch refused a call. A refusal by S3 becomes the job's `Why.trouble`.
        """
        causes = await asyncio.gather(*(self._why(entry) for entry in entries))
        return [replace(entry, why=why) for entry, why in zip(entries, causes, strict=True)]

    async def _why(self, entry: Entry) -> Why:
        detail = entry.detail
        if entry.is_command or detail.node_index is not None:
            has_failed = detail.status is JobStatus.FAILED and not _was_ended(detail)
            return Why(error=_of_batch(detail).text if has_failed else None)
        texts = await self.calls(detail)
        bundle = _bundle_of(detail)
        trouble = self._troubles.get(bundle)
        if detail.array_size:
            groups = await self.groups(detail)
            for group in groups.groups:
                group.call = _at(texts, group.example) or ""
            errors = tuple(groups.record())
            return Why(None, groups.summary() or None, errors, trouble)
        reason = await self._reason(detail)
        trouble = trouble or self._troubles.get(detail.job_id)
        return Why(_at(texts, detail.index), reason.text if reason else None, (), trouble)

    # --- calls --------------------------------------------------------------------------------

    async def calls(self, detail: JobDetail) -> list[str]:
        """Return the texts of a job's calls by task index.

        Args:
            detail: A single job, an array job, or an array task.

        Returns:
            A text per task; none if the bundle is deleted, contains no texts, or is forged.
        """
        try:
            submission = Submission.whole(detail)
        except FarcallError:
            return []
        bundle = _bundle_of(detail)
        if bundle in self._texts:
            return self._texts[bundle]
        reading = self._reading.get(bundle)
        if reading is None:
            reading = self._reading[bundle] = asyncio.ensure_future(
                self._read_texts(bundle, submission)
            )
            reading.add_done_callback(lambda _: self._reading.pop(bundle, None))
        return await asyncio.shield(reading)

    async def _read_texts(self, bundle: str, submission: Submission) -> list[str]:
        store = self._session.stores.of(submission.where.bucket)
        try:
            async with self._places:
                stored = await bundles.texts_of(store, submission) or []
            texts = [call_texts.summary(text) for text in stored]
        except envelope.EnvelopeError as error:
            texts = []
            self._troubles[bundle] = f"cannot read {submission.where.url} ({error})"
            if isinstance(error, envelope.IntegrityError):
                self._troubles[bundle] = (
                    f"{submission.where.url} differs from what was submitted ({error}). Find out "
                    "who writes to the bucket."
                )
        except FarcallError as error:
            texts = []
            # A user who only lists jobs may lack the permission to read bundles.
            if not error_translation.concerns_all(error):
                self._troubles[bundle] = str(error)
            if _passes(error):  # the next call requests it again
                return texts
        else:
            self._troubles.pop(bundle, None)
        while self._texts and sum(map(len, self._texts.values())) > _MOST_TEXTS:
            del self._texts[next(iter(self._texts))]
        self._texts[bundle] = texts
        return texts

    # --- errors -------------------------------------------------------------------------------

    async def errors(self, parent: JobDetail, listed: Iterable[JobDetail]) -> dict[int, Reason]:
        """Return the errors of failed array tasks; each unknown one takes a request.

        Returns:
            Errors by index, without cancelled tasks.
        """
        children = [child_of(parent, each) for each in listed]
        reasons = await asyncio.gather(*map(self._reason, children))
        pairs = zip(children, reasons, strict=True)
        return {child.index: reason for child, reason in pairs if reason is not None}

    async def groups(self, parent: JobDetail) -> Groups:
        """Return grouped errors of an array job's first failed, not cancelled, tasks.

        At most 100 tasks are read.

        Raises:
            ServiceError: Batch refused a call.
        """
        if parent.job_id in self._groups:
            return self._groups[parent.job_id]
        groups = Groups()
        if parent.status_summary.get(JobStatus.FAILED.value):
            children = await self._failed_children(parent)
            reasons = await asyncio.gather(*map(self._reason, children))
            for child, reason in zip(children, reasons, strict=True):
                if reason is not None:
                    groups.add(child.index, reason)
        if parent.status.is_final:
            _bound(self._groups, _MOST_REASONS // _MOST_READ)
            self._groups[parent.job_id] = groups
        return groups

    async def _failed_children(self, parent: JobDetail) -> list[JobDetail]:
        failed: list[JobDetail] = []
        pages = self._session.backend.list_children(parent.job_id, JobStatus.FAILED)
        async for page in pages:
            children = (child_of(parent, listed) for listed in page)
            failed += [child for child in children if not _was_ended(child)]
            if len(failed) >= _MOST_READ:
                break
        return sorted(failed, key=lambda child: child.index)[:_MOST_READ]

    async def _reason(self, detail: JobDetail) -> Reason | None:
        """Return why a task failed; None if it has not failed or has not finished."""
        if detail.status is not JobStatus.FAILED or _was_ended(detail):
            return None
        if detail.job_id not in self._reasons:
            try:
                reason = await self._read_reason(detail) or _of_batch(detail)
            except ServiceError:  # temporary: the next call requests it again
                return _of_batch(detail)
            _bound(self._reasons, _MOST_REASONS)
            self._reasons[detail.job_id] = reason
        return self._reasons[detail.job_id]

    async def _read_reason(self, detail: JobDetail) -> Reason | None:
        """Return the error in a task's outcome; None without such an outcome.

        Raises:
            ServiceError: S3 refused a request, and may accept the next one.
        """
        try:
            submission, index = Submission.of(detail)
            store = self._session.stores.of(submission.where.bucket)
            async with self._places:
                key = submission.where.outcome_key(index)
                stored = await outcomes.fetch(store, submission, key)
        except envelope.EnvelopeError as error:
            return Reason.of_failure_reason(failure_reasons.unusable(error))
        except FarcallError as error:
            self._troubles[detail.job_id] = str(error)
            if _passes(error):
                raise
            return None
        self._troubles.pop(detail.job_id, None)
        if stored is None or stored.outcome.meta["status"] == OutcomeStatus.TERMINATED:
            return None
        return results.reason(stored.outcome.meta)


def _at(texts: Sequence[str], index: int) -> str | None:
    return (texts[index] or None) if index < len(texts) else None


def child_of(parent: JobDetail, listed: JobDetail) -> JobDetail:
    """Return the complete description of an array task."""
    # A listing reports a cancellation only by its status reason.
    by_words = (
        listed.status is JobStatus.FAILED and listed.status_reason and not listed.is_explained
    )
    return replace(
        parent.with_status_of(listed),
        job_id=listed.job_id,
        created_at=listed.created_at or parent.created_at,
        is_cancelled=listed.is_cancelled,
        is_terminated=listed.is_terminated or bool(by_words),
        array_size=0,
        status_summary={},
    )


def _was_ended(detail: JobDetail) -> bool:
    return detail.failure_reason().kind is JobCancelledError


def _of_batch(detail: JobDetail) -> Reason:
    return Reason.of_failure_reason(detail.failure_reason())


def _bundle_of(detail: JobDetail) -> str:
    variables = detail.environment
    return f"{variables.get(ENV_BUNDLE, '')} {variables.get(ENV_DIGEST, '')}"


def _passes(error: FarcallError) -> bool:
    return isinstance(error, ServiceError) and error_translation.may_pass(error)


def _bound(known: dict[str, Any], most: int) -> None:
    while len(known) >= most:
        del known[next(iter(known))]
