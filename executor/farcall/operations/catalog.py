"""Catalog of farcall jobs, only from the platform: owner, workflow and state.

It works on any machine and after any crash, because a job's environment contains its owner and
workflow. Batch describes each job once, a hundred jobs per request; the state is in each listing.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from farcall.backends.base import Backend
from farcall.config.ladders import Rung, read_rungs
from farcall.model.commands import ENV_RUN
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.workflows import Workflow
from farcall.operations import json_view
from farcall_runtime.contract import (
    ENV_BUNDLE,
    ENV_DISPATCH,
    ENV_RETRY_OF,
    ENV_RUNGS,
    ENV_WORKFLOW,
    Location,
)


class Why(NamedTuple):
    """Facts about a job from the bucket; see `farcall.operations.reasons`.

    Attributes:
        call: The call as one line: ``fit(lr=0.1, depth=3)``; None if unknown.
        error: Failure reason: ``ValueError: singular matrix``, for an array job a summary; None if
            it has not failed, or if unknown.
        errors: For an array job, groups of failed tasks: ``text``, ``count``, ``example`` (the
            index of one of them) and ``call``, its call or None.
        trouble: Reason why facts are unknown, if it needs attention.
    """

    call: str | None = None
    error: str | None = None
    errors: tuple[dict[str, Any], ...] = ()
    trouble: str | None = None


NOTHING = Why()
"""Value for a job whose facts were not read from the bucket."""


CLIENT = re.compile(r"[A-Za-z0-9-]{1,32}-[0-9]{8}-[0-9]{6}-[0-9a-f]{6}")
"""Format of a session's name; other values, which users can set, are ignored."""

_JOB = re.compile(
    r"(?:[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|[a-z0-9][a-z0-9-]{0,62}-[0-9a-f]{8,16})"
    r"(?::\d{1,5})?"
)
"""Job ID of any platform; an array task's has its index."""


@dataclass(frozen=True)
class Entry:
    """Job that farcall submitted: a single or array job, an array task, or a node.

    Attributes:
        detail: Batch's description.
        workflow: Workflow of the job.
        client: Name of the client's run, ``<user>-<date>-<time>-<random>``, its folder in the
            bucket.
        why: Call and failure reason, if requested.
    """

    detail: JobDetail
    workflow: Workflow
    client: str
    why: Why = NOTHING

    @classmethod
    def of(cls, detail: JobDetail) -> Entry | None:
        """Return the entry for a description; None if farcall did not submit the job."""
        variables = detail.environment
        name = variables.get(ENV_WORKFLOW, "")
        if detail.is_command:  # never a Covalent job, regardless of its variables
            client = variables.get(ENV_RUN, "")
            is_ours = CLIENT.fullmatch(client)
            return cls(detail, Workflow(name, ""), client) if is_ours else None
        try:
            where = Location.parse(variables.get(ENV_BUNDLE, ""))
        except ValueError:
            return None
        workflow = Workflow(name, variables.get(ENV_DISPATCH, ""))
        return cls(detail, workflow, where.root.rpartition("/")[2])

    @property
    def is_command(self) -> bool:
        """Whether the job runs a command instead of a function."""
        return self.detail.is_command

    @property
    def function(self) -> str:
        """Name of the function; for a command job its name without the unique suffix."""
        name = self.detail.name
        return name.rpartition("-")[0] or name

    @property
    def run(self) -> str:
        """Run of the workflow: the dispatch's ID, or without Covalent the client's run."""
        return self.workflow.dispatch or self.client

    @property
    def user(self) -> str:
        """Name of the submitting user on the client's machine."""
        return self.client.rsplit("-", 3)[0]

    @property
    def retry_of(self) -> str:
        """ID of the job that this job retries, as the job records it; empty if none."""
        retried = self.detail.environment.get(ENV_RETRY_OF, "")
        return retried if _JOB.fullmatch(retried) and not self.is_command else ""

    @property
    def rungs(self) -> dict[str, Rung]:
        """Positions of the job's memory and queue in the options' lists, by option."""
        return {} if self.is_command else read_rungs(self.detail.environment.get(ENV_RUNGS, ""))


class Query(NamedTuple):
    """Filter for jobs; unset fields match all jobs.

    Attributes:
        user: Submitting user, as `Entry.user`.
        workflow: The workflow's name, or a dispatch's ID.
        run: A client's run or a dispatch.
        states: States from `json_view.STATES`, of which the job or an array task has one.
        since: Earliest submission time.
    """

    user: str | None = None
    workflow: str | None = None
    run: str | None = None
    states: frozenset[str] = frozenset()
    since: datetime | None = None

    def fits(self, entry: Entry) -> bool:
        """Return whether a job matches; the listing handles `since`."""
        return (
            self.user in (None, entry.user)
            and self.workflow in (None, *entry.workflow)
            and self.run in (None, entry.run, entry.client)
            and self.has_state(entry.detail)
        )

    def has_state(self, detail: JobDetail) -> bool:
        """Return whether a job, or one of its array tasks, has one of the states."""
        own, counts = json_view.state(detail), detail.status_summary
        if not self.states or own in self.states:
            return True
        return own != json_view.CANCELLED and any(counts.get(state) for state in self.states)


class Catalog:
    """Job catalog, which caches immutable facts."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._known: dict[str, Entry | None] = {}

    async def find(self, queues: Iterable[str], query: Query) -> AsyncIterator[Entry]:
        """Yield the matching jobs of some queues, the newest of each queue first.

        Each page of 100 farcall jobs takes one request, and one more the first time.

        Raises:
            ServiceError: Batch refused a call, or a queue does not exist.
        """
        for queue in queues:
            async for page in self._backend.list_jobs(queue, query.since):
                for entry in await self.recognize(page):
                    if query.fits(entry):
                        yield entry

    async def recognize(self, listed: list[JobDetail]) -> list[Entry]:
        """Return the jobs in a listing that farcall submitted, fully described.

        Raises:
            ServiceError: Batch refused a call.
        """
        await self._learn(job.job_id for job in listed if self._is_news(job))
        recognized = []
        for job in listed:
            entry = self._known.get(job.job_id)
            if entry is not None:
                recognized.append(replace(entry, detail=entry.detail.with_status_of(job)))
        return recognized

    async def describe(self, job_ids: Iterable[str]) -> dict[str, Entry | None]:
        """Return Batch's current descriptions of jobs and array tasks.

        Returns:
            Entries by ID, for jobs that Batch knows; None for jobs that farcall did not submit.

        Raises:
            ServiceError: Batch refused a call.
        """
        details = await self._backend.describe(job_ids)
        return {job_id: Entry.of(detail) for job_id, detail in details.items()}

    def _is_news(self, job: JobDetail) -> bool:
        """Return whether to describe a job: once, and again if it may have been cancelled.

        Unlike a description, a listing does not report that a job was terminated.
        """
        known = self._known.get(job.job_id)
        if known is None:
            return job.job_id not in self._known
        has_failed = job.status is JobStatus.FAILED and not known.detail.status.is_final
        return has_failed and bool(job.status_reason) and not job.is_explained

    async def _learn(self, job_ids: Iterable[str]) -> None:
        # Jobs that Batch lists but does not describe yet are requested again.
        self._known.update(await self.describe(job_ids))
