"""Catalog of the jobs there are, from Batch alone: whose, of which workflow, and how they are.

It works on any machine and after any crash, because a job's environment says what it belongs to.
Batch is asked once for that, a request for a hundred jobs; how a job is comes with each listing.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from farcall.backends.base import Backend
from farcall.model.commands import ENV_RUN
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.workflows import Workflow
from farcall_runtime.contract import (
    ENV_BUNDLE,
    ENV_DISPATCH,
    ENV_RETRY_OF,
    ENV_WORKFLOW,
    Location,
)


class Why(NamedTuple):
    """What is known of a job beside Batch's words; see `farcall.operations.reasons`.

    Attributes:
        call: The call, in a line: ``fit(lr=0.1, depth=3)``; None where that is not known.
        error: Why it failed: ``ValueError: singular matrix``, of an array in short why its
            children did; None where it has not, or that is not known.
        errors: Of an array, the groups of its failed children: ``text``, ``count``, ``example``,
            the index of one of them, and ``call``, its call or None.
        trouble: Why something of this is not known, where somebody should look into it.
    """

    call: str | None = None
    error: str | None = None
    errors: tuple[dict[str, Any], ...] = ()
    trouble: str | None = None


NOTHING = Why()
"""What is known of a job that was not asked for."""


_CLIENT = re.compile(r"[A-Za-z0-9-]{1,32}-[0-9]{8}-[0-9]{6}-[0-9a-f]{6}")
"""As a session names itself. Anybody can give a job a variable, so more is not believed."""

_JOB = re.compile(
    r"(?:[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|[a-z0-9][a-z0-9-]{0,62}-[0-9a-f]{8,16})"
    r"(?::\d{1,5})?"
)
"""An ID of any platform, of an array's child with its number."""


@dataclass(frozen=True)
class Entry:
    """A job that farcall submitted: as a whole, a child of an array, or a node.

    Attributes:
        detail: What Batch says of it.
        workflow: What it belongs to.
        client: The client process that submitted it, ``<user>-<date>-<time>-<random>``, which
            is its name in the bucket.
        why: What it was called with, and why it failed, where that was asked for.
    """

    detail: JobDetail
    workflow: Workflow
    client: str
    why: Why = NOTHING

    @classmethod
    def of(cls, detail: JobDetail) -> Entry | None:
        """Return what a description of Batch's tells; None if farcall did not submit the job."""
        said = detail.environment
        name = said.get(ENV_WORKFLOW, "")
        if detail.is_command:  # which is nothing of Covalent's, whatever it says
            client = said.get(ENV_RUN, "")
            is_ours = _CLIENT.fullmatch(client)
            return cls(detail, Workflow(name, ""), client) if is_ours else None
        try:
            where = Location.parse(said.get(ENV_BUNDLE, ""))
        except ValueError:
            return None
        workflow = Workflow(name, said.get(ENV_DISPATCH, ""))
        return cls(detail, workflow, where.root.rpartition("/")[2])

    @property
    def is_command(self) -> bool:
        """Whether it runs a command, and no function."""
        return self.detail.is_command

    @property
    def function(self) -> str:
        """The function's name; of a command job its own, without what makes it unique."""
        name = self.detail.name
        return name.rpartition("-")[0] or name

    @property
    def run(self) -> str:
        """One run of its workflow: the dispatch's ID, without Covalent the client process."""
        return self.workflow.dispatch or self.client

    @property
    def user(self) -> str:
        """Who submitted it, as the client's machine calls that person."""
        return self.client.rsplit("-", 3)[0]

    @property
    def retry_of(self) -> str:
        """ID of the job that it is a retry of, as the job records it; empty if it is none."""
        said = self.detail.environment.get(ENV_RETRY_OF, "")
        return said if _JOB.fullmatch(said) and not self.is_command else ""

    def has_status(self, statuses: Iterable[JobStatus]) -> bool:
        """Return whether it, or one of its children, has one of these."""
        counts = self.detail.status_summary
        own = (self.detail.status, self.detail.furthest)
        return any(s in own or counts.get(s.value) for s in statuses)


class Query(NamedTuple):
    """Which jobs are asked for; what is left out does not matter.

    Attributes:
        user: Who submitted them, as `Entry.user`.
        workflow: The workflow's name, or a dispatch's ID.
        run: A client process or a dispatch.
        statuses: One of these; of an array also one of its children.
        since: Submitted at this moment or later.
    """

    user: str | None = None
    workflow: str | None = None
    run: str | None = None
    statuses: frozenset[JobStatus] = frozenset()
    since: datetime | None = None

    def fits(self, entry: Entry) -> bool:
        """Return whether a job is one of them; `since` is left to the listing."""
        return (
            self.user in (None, entry.user)
            and self.workflow in (None, *entry.workflow)
            and self.run in (None, entry.run, entry.client)
            and (not self.statuses or entry.has_status(self.statuses))
        )


class Catalog:
    """Lists jobs, and remembers what does not change."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._known: dict[str, Entry | None] = {}

    async def find(self, queues: Iterable[str], query: Query) -> AsyncIterator[Entry]:
        """Yield the jobs of some queues that are asked for, the newest of each queue first.

        It takes one request for each 100 jobs that farcall submitted there since, and one more
        the first time.

        Raises:
            ServiceError: Batch refused a call, or there is no such queue.
        """
        for queue in queues:
            async for page in self._backend.list_jobs(queue, query.since):
                for entry in await self.recognize(page):
                    if query.fits(entry):
                        yield entry

    async def recognize(self, listed: list[JobDetail]) -> list[Entry]:
        """Return those of some listed jobs that farcall submitted, with all that is known of them.

        Raises:
            ServiceError: Batch refused a call.
        """
        await self._learn(job.job_id for job in listed if self._is_news(job))
        found = []
        for job in listed:
            entry = self._known.get(job.job_id)
            if entry is not None:
                found.append(replace(entry, detail=entry.detail.with_status_of(job)))
        return found

    async def describe(self, job_ids: Iterable[str]) -> dict[str, Entry | None]:
        """Return what Batch says of jobs now, children among them.

        Returns:
            By ID, the jobs that Batch knows; None for those that farcall did not submit.

        Raises:
            ServiceError: Batch refused a call.
        """
        found = await self._backend.describe(job_ids)
        return {job_id: Entry.of(detail) for job_id, detail in found.items()}

    def _is_news(self, job: JobDetail) -> bool:
        """Return whether to describe a job: once, and again if only that shows who canceled it.

        Other than a description, a listing does not say that somebody terminated a job.
        """
        known = self._known.get(job.job_id)
        if known is None:
            return job.job_id not in self._known
        has_failed = job.status is JobStatus.FAILED and not known.detail.status.is_final
        return has_failed and bool(job.status_reason) and not job.is_explained

    async def _learn(self, job_ids: Iterable[str]) -> None:
        # One that Batch does not describe yet, though it lists it, is asked for again.
        self._known.update(await self.describe(job_ids))
