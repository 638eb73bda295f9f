"""Client of AWS Batch: definitions, submission, status and termination of jobs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from farcall.aws import error_translation
from farcall.aws.clients import Aws
from farcall.aws.paced_client import PacedClient, Tries
from farcall.backends.batch.describe import from_describe, from_summary
from farcall.backends.batch.documents import Definition
from farcall.backends.batch.resubmission import options_of, requests_of
from farcall.model.errors import ServiceError, SettingsError
from farcall.model.failure_reasons import OWN_REASON
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.pacing import Meter, Ticket

_log = logging.getLogger("farcall")

DESCRIBE_IDS = 100
"""Maximum IDs in one DescribeJobs call.

https://docs.aws.amazon.com/batch/latest/APIReference/API_DescribeJobs.html
"""

TERMINATE_IDS = 50
"""Maximum jobs in one TerminateJobs call.

https://docs.aws.amazon.com/batch/latest/APIReference/API_TerminateJobs.html
"""

_NOT_FOUND = 404
_REASON_CHARACTERS = 1024

# Calls per second. The quota of an account is 50 for each operation, or for all operations: the
# AWS documents differ.
_SUBMITS_PER_S = 45.0
_POLLS_PER_S = 5.0
_CONTROLS_PER_S = 20.0

_LONG_AGO = datetime(1970, 1, 2, tzinfo=UTC)

_OURS = "farcall-"
"""Prefix of the job definitions that farcall registers; see `farcall.backends.batch.documents`."""

_EVERY_JOB = {"name": "AFTER_CREATED_AT", "values": ["1"]}
"""Filter for all jobs; without a filter, a list contains jobs of one status only."""


class Batch:
    """AWS Batch in one account and region.

    Args:
        access: The open clients.
        pace: Factor on the maximum request rates.

    Attributes:
        meter: Counter of the requests.
    """

    def __init__(self, access: Aws, *, pace: float = 1) -> None:
        self._aws = access
        self._timing = access.timing
        self._definitions: dict[str, asyncio.Task[str]] = {}
        self.meter = Meter()
        self._submitting, self._polling, self._control = (
            PacedClient(access.batch, pace * rate, access.timing, self.meter)
            for rate in (_SUBMITS_PER_S, _POLLS_PER_S, _CONTROLS_PER_S)
        )

    # --- queues and definitions ---------------------------------------------------------------

    async def find_queue(self, name: str) -> dict[str, Any] | None:
        """Return a job queue, or None if there is no such queue.

        Raises:
            ServiceError: Batch refused the call.
        """
        async for page in self._control.pages("describe_job_queues", jobQueues=[name]):
            for queue in page.get("jobQueues", []):
                described: dict[str, Any] = queue
                return described
        return None

    async def queues(self) -> list[str]:
        """Return the names of all job queues of the region.

        Raises:
            ServiceError: Batch refused the call.
        """
        pages = self._polling.pages("describe_job_queues")
        return [q["jobQueueName"] async for page in pages for q in page.get("jobQueues", [])]

    async def find_environments(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return a queue's compute environments; empty if not all can be described.

        Args:
            names: Their names or ARNs, at most three. The request is not retried.

        Raises:
            ServiceError: Batch refused the call.

        Source:
            https://docs.aws.amazon.com/batch/latest/APIReference/API_CreateJobQueue.html
        """
        if not names:
            return []
        reply = await self._control.once(
            "describe_compute_environments", computeEnvironments=list(names)
        )
        environments: list[dict[str, Any]] = reply.get("computeEnvironments", [])
        return environments if len(environments) == len(names) else []

    async def ensure_definition(self, definition: Definition, *, refresh: bool = False) -> str:
        """Return the ARN of an active definition with this content, or register one.

        Args:
            definition: The definition.
            refresh: Whether to call Batch even if the definition is known, because another process
                may have deregistered it.

        Raises:
            SettingsError: Batch refused the definition's content.
            ServiceError: Batch refused the call.
        """
        task = self._definitions.get(definition.name) if not refresh else None
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = asyncio.ensure_future(self._ensure(definition))
            self._definitions[definition.name] = task
        return await asyncio.shield(task)

    async def _ensure(self, definition: Definition) -> str:
        tries = Tries(self._timing.register_retry_s)
        while True:
            # Checked again before each retry, because each registration creates a revision, even
            # one without a response.
            existing = await self.find_definition(definition.name)
            if existing:
                return str(existing["jobDefinitionArn"])
            try:
                reply = await self._control.once(
                    "register_job_definition",
                    jobDefinitionName=definition.name,
                    **definition.document,
                )
            except ServiceError as error:
                # Another process is registering the same definition.
                busy = "Too many concurrent attempts" in str(error)
                if error.code == "ClientException" and not busy:
                    raise _refused_definition(error) from error
                await tries.wait_after(error, again=busy)
            else:
                return str(reply["jobDefinitionArn"])

    async def find_definition(self, name: str) -> dict[str, Any] | None:
        """Return a definition by name and revision, by default the newest active one."""
        short = name.rpartition("/")[2]
        wanted: dict[str, Any] = {"jobDefinitionName": short, "status": "ACTIVE"}
        if ":" in short:
            wanted = {"jobDefinitions": [name]}  # excludes all other parameters
        definitions: list[dict[str, Any]] = []
        try:
            async for page in self._control.pages("describe_job_definitions", **wanted):
                definitions += page.get("jobDefinitions", [])
        except ServiceError as error:
            if "AccessDenied" not in error.code:
                raise
            _log.debug("cannot look up definitions, so one is registered: %s", error)
            return None
        return max(definitions, key=lambda item: item.get("revision", 0), default=None)

    async def deregister(self, name: str) -> None:
        """Deregister a revision of a definition. Jobs submitted with it continue.

        Raises:
            ServiceError: Batch refused the call.
        """
        self._definitions.pop(name.partition(":")[0], None)
        await self._control.call("deregister_job_definition", jobDefinition=name)

    # --- jobs ---------------------------------------------------------------------------------

    async def submit(self, request: Mapping[str, Any], ticket: Ticket) -> str:
        """Send a SubmitJob request once, and return the job's ID.

        SubmitJob has no idempotency token, so only `farcall.engine.sender` knows when to send it
        again.

        Args:
            request: The request.
            ticket: The caller's handle to withdraw it.

        Raises:
            ServiceError: Batch refused, or did not respond.
        """
        reply = await self._submitting.once("submit_job", ticket=ticket, **request)
        return str(reply["jobId"])

    async def find_named(self, queue: str, name: str) -> list[JobDetail]:
        """Return a queue's jobs with a name, in any status, the newest first.

        Lists lag behind: a new job appears a little later.

        Raises:
            ServiceError: Batch refused the call, or the queue does not exist.

        Source:
            https://docs.aws.amazon.com/batch/latest/APIReference/API_ListJobs.html
        """
        pages = self._control.pages(
            "list_jobs",
            retry_s=self._timing.listed_within_s,
            jobQueue=queue,
            filters=[{"name": "JOB_NAME", "values": [name]}],
        )
        # The filter is case-insensitive.
        jobs = [job async for page in pages for job in self._read(page) if job.name == name]
        return sorted(jobs, key=lambda job: job.created_at or _LONG_AGO, reverse=True)

    async def list_jobs(
        self, queue: str, since: datetime | None, *, named: str, foreign: bool
    ) -> AsyncGenerator[list[JobDetail], None]:
        """Yield a queue's jobs; see `farcall.backends.base.Backend.list_jobs`.

        Raises:
            ServiceError: Batch refused the call, or the queue does not exist.
        """
        wanted = _filter(named, foreign=foreign)
        async for reply in self._polling.pages("list_jobs", jobQueue=queue, filters=[wanted]):
            jobs = self._read(reply)
            young = [job for job in jobs if since is None or not _is_before(job, since)]
            page = [job for job in young if _matches(job, named, foreign=foreign)]
            if page:
                yield page
            if len(young) < len(jobs):
                return

    async def list_children(
        self, parent_id: str, status: JobStatus
    ) -> AsyncIterator[list[JobDetail]]:
        """Yield an array's child jobs that have a status, in pages of up to 1000.

        Raises:
            ServiceError: Batch refused the call.
        """
        wanted = {"arrayJobId": parent_id, "jobStatus": status.value}
        async for page in self._polling.pages("list_jobs", **wanted):
            children = self._read(page)
            yield [child for child in children if child.status is status and child.is_child]

    async def front(self, queue: str) -> list[str]:
        """Return the IDs of the first 100 RUNNABLE jobs of a queue.

        Raises:
            ServiceError: Batch refused the call, or the queue does not exist.

        Source:
            https://docs.aws.amazon.com/batch/latest/APIReference/API_GetJobQueueSnapshot.html
        """
        reply = await self._polling.call("get_job_queue_snapshot", jobQueue=queue)
        jobs = reply.get("frontOfQueue", {}).get("jobs", [])
        return [job["jobArn"].rpartition(":job/")[2] for job in jobs]

    def _read(self, page: Mapping[str, Any]) -> list[JobDetail]:
        return [from_summary(job) for job in page.get("jobSummaryList", [])]

    async def describe(self, job_ids: Iterable[str]) -> dict[str, JobDetail]:
        """Return the details of jobs; unknown jobs, and some new ones, are missing.

        Raises:
            ServiceError: Batch refused the call.
        """
        details: dict[str, JobDetail] = {}
        for ids in _groups(job_ids, DESCRIBE_IDS):
            reply = await self._polling.call("describe_jobs", jobs=ids)
            for job in reply.get("jobs", []):
                details[job["jobId"]] = from_describe(job)
        return details

    async def requests_of(self, job_id: str) -> dict[str, Any] | None:
        """Return the requests for a copy of a job; None if Batch does not know it.

        Raises:
            ServiceError: Batch refused the call.
        """
        job = await self._document(job_id)
        return requests_of(job) if job else None

    async def options_of(self, job_id: str) -> dict[str, Any]:
        """Return a job's Batch-specific options; empty if Batch does not know it.

        Raises:
            ServiceError: Batch refused the call.
        """
        job = await self._document(job_id)
        return options_of(from_describe(job), requests_of(job)) if job else {}

    async def _document(self, job_id: str) -> dict[str, Any] | None:
        reply = await self._polling.call("describe_jobs", jobs=[job_id])
        return next(iter(reply.get("jobs", [])), None)

    async def terminate(self, job_ids: Sequence[str], reason: str) -> dict[str, ServiceError]:
        """Terminate jobs in any status; no effect on jobs that have ended.

        Args:
            job_ids: Jobs, array jobs with all their child jobs, or single child jobs.
            reason: Stored by Batch as the status reason, up to 1024 characters.

        Returns:
            The errors of the jobs that Batch refused to terminate.
        """
        reason = f"{OWN_REASON}{reason}"[:_REASON_CHARACTERS]
        if len(job_ids) == 1:
            return await self._end_each("terminate_job", job_ids, reason)
        groups = _groups(job_ids, TERMINATE_IDS)
        refused: dict[str, ServiceError] = {}
        for errors in await asyncio.gather(*(self._terminate_all(g, reason) for g in groups)):
            refused |= errors
        return refused

    async def cancel_waiting(self, job_ids: Sequence[str], reason: str) -> dict[str, ServiceError]:
        """Cancel jobs and child jobs that are not yet STARTING; the others continue.

        Source:
            https://docs.aws.amazon.com/batch/latest/APIReference/API_CancelJob.html
        """
        reason = f"{OWN_REASON}{reason}"[:_REASON_CHARACTERS]
        return await self._end_each("cancel_job", job_ids, reason)

    async def close(self) -> None:
        """Cancel registrations that no caller waits for."""
        for each in self._definitions.values():
            each.cancel()
        await asyncio.gather(*self._definitions.values(), return_exceptions=True)

    async def _terminate_all(self, job_ids: list[str], reason: str) -> dict[str, ServiceError]:
        """Terminate jobs with one call, and those that it did not terminate one by one."""
        try:
            reply = await self._control.call("terminate_jobs", jobs=job_ids, reason=reason)
        except ServiceError as error:
            # Missing jobs are no error, so 404 means that the call's path does not exist.
            is_unknown = error_translation.is_unknown_call(error) or error.status == _NOT_FOUND
            # A denial may concern only one of the jobs.
            if not is_unknown and not error_translation.is_denied(error):
                return dict.fromkeys(job_ids, error)
            return await self._end_each("terminate_job", job_ids, reason)
        left = [each["job"] for each in reply.get("errors", [])]
        return await self._end_each("terminate_job", left, reason)

    async def _end_each(
        self, operation: str, job_ids: Sequence[str], reason: str
    ) -> dict[str, ServiceError]:
        refused: dict[str, ServiceError] = {}

        async def end(job_id: str) -> None:
            try:
                await self._control.call(operation, jobId=job_id, reason=reason)
            except ServiceError as error:
                refused[job_id] = error

        await asyncio.gather(*map(end, job_ids))
        return refused


def _refused_definition(error: ServiceError) -> SettingsError:
    return SettingsError(
        f"Batch rejected the job definition made of the options: {error}. Check image, the "
        "roles and job_definition_extra.",
        option="job_definition_extra",
    )


def _groups(items: Iterable[Any], size: int) -> Iterable[list[Any]]:
    iterator = iter(items)
    while group := list(islice(iterator, size)):
        yield group


def _is_before(job: JobDetail, since: datetime) -> bool:
    return job.created_at is not None and job.created_at < since


def _filter(named: str, *, foreign: bool) -> dict[str, Any]:
    """Return the filter of a request, which can contain only one condition."""
    if named:
        return {"name": "JOB_NAME", "values": [f"{named}*"]}
    if foreign:
        return _EVERY_JOB
    return {"name": "JOB_DEFINITION", "values": [f"{_OURS}*"]}


def _matches(job: JobDetail, named: str, *, foreign: bool) -> bool:
    """Apply the other conditions: the name filter ignores case and definitions."""
    is_ours = foreign or not named or job.definition.startswith(_OURS)
    return is_ours and job.name.startswith(named)
