"""AWS Batch backend: `farcall.backends.base.Backend` by Batch's calls, documents and texts."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from farcall.aws import console_urls
from farcall.aws.clients import Aws
from farcall.aws.findings import Finding
from farcall.aws.paced_client import Ticket, Tries
from farcall.backends.base import Capabilities, JobSpec, Log
from farcall.backends.batch import cloudwatch, doctor, preflight
from farcall.backends.batch.client import DESCRIBE_IDS, Batch
from farcall.backends.batch.documents import LARGEST_ARRAY, Definition, definition, job_request
from farcall.backends.batch.preflight import Resources
from farcall.model.errors import ServiceError, SettingsError, SubmissionError
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.settings import Settings

_ACCOUNT = "ACCOUNT"
"""Stands in ARNs for the account's number where nobody is asked for it."""

_NEW_DEFINITION = re.compile("definition.*not found", re.IGNORECASE)


class BatchBackend:
    """Batch of one account and region; see `farcall.backends.base.Backend` for the methods.

    Args:
        access: The open clients.
    """

    name = "batch"
    capabilities = Capabilities(
        largest_array=LARGEST_ARRAY,
        described_together=DESCRIBE_IDS,
        longest_log_line_bytes=cloudwatch.LARGEST_EVENT_BYTES,
    )

    def __init__(self, access: Aws) -> None:
        self._aws = access
        self._batch = Batch(access)
        self._resources: dict[tuple[str, str], Resources] = {}
        self._definitions: dict[str, str] = {}
        self.meter = self._batch.meter

    # --- before a job is paid for -------------------------------------------------------------

    async def check(self, settings: Settings) -> None:
        """See that queue, roles and log group are there."""
        found = await preflight.check(self._aws, self._batch, settings)
        self._resources[_roles(settings)] = found

    async def reach(self) -> list[Finding]:
        """See that Batch answers in the region."""
        return await doctor.region(self._aws)

    def examine(
        self, settings: Settings, *, answers: bool
    ) -> Mapping[str, Awaitable[Iterable[Finding]]]:
        """Return the checks of queue, roles, log group, resources and image."""
        return doctor.checks(self._aws, self._batch, settings, answers=answers)

    async def plan(self, job: JobSpec, *, offline: bool = False) -> dict[str, Any]:
        """Return the RegisterJobDefinition and the SubmitJob request."""
        found = None
        if offline:
            wanted = self._write_offline(job.settings)
        else:
            wanted = await self._write(job.settings)
            found = await self._batch.find_definition(wanted.name)
        arn = found["jobDefinitionArn"] if found else f"(ARN of {wanted.name})"
        return {
            "definition": {
                "name": wanted.name,
                "registered": None if offline else found is not None,
            },
            "RegisterJobDefinition": {"jobDefinitionName": wanted.name, **wanted.document},
            "SubmitJob": _request(job, arn),
        }

    def _write_offline(self, settings: Settings) -> Definition:
        def arn(name: str) -> str:
            is_name = name and not name.startswith("arn:")
            return preflight.role_arn(self._aws.region, _ACCOUNT, name) if is_name else name

        unknown_image = f"(image of {settings.batch_job_definition_name})"
        return definition(
            settings,
            image=settings.container_image_uri or unknown_image,
            region=self._aws.region,
            job_role=arn(settings.batch_job_role_name),
            execution_role=arn(settings.batch_execution_role_name),
        )

    async def _write(self, settings: Settings) -> Definition:
        if _roles(settings) not in self._resources:
            await self.check(settings)
        resources = self._resources[_roles(settings)]
        return definition(
            settings,
            image=await preflight.find_image(self._batch, settings),
            region=self._aws.region,
            job_role=resources.job_role,
            execution_role=resources.execution_role,
        )

    # --- jobs ---------------------------------------------------------------------------------

    async def prepare(self, job: JobSpec) -> None:
        """Have the definition registered, and see that the request is within Batch's limits."""
        arn = await self._batch.ensure_definition(await self._write(job.settings))
        self._definitions[job.settings.fingerprint] = arn
        _request(job, arn)

    async def submit(self, job: JobSpec, ticket: Ticket) -> str:
        """Send a SubmitJob request, and return the job's ID."""
        if job.settings.fingerprint not in self._definitions:
            await self.prepare(job)
        request = _request(job, self._definitions[job.settings.fingerprint])
        tries = Tries(self._aws.timing.defined_retry_s)
        while True:
            try:
                return await self._batch.submit(request, ticket)
            except ServiceError as error:
                if error.sent or error.code != "ClientException":
                    raise
                ticket.note_refused()
                try:
                    # Batch's own services learn of a new definition one after the other.
                    again = bool(_NEW_DEFINITION.search(str(error)))
                    await tries.wait_after(error, again=again)
                except ServiceError as last:
                    raise _refused(request, last) from error

    async def find(self, name: str, queue: str) -> list[str]:
        """Return the IDs of a queue's jobs of one name."""
        return await self._batch.find_named(queue, name)

    async def describe(self, job_ids: Iterable[str]) -> dict[str, JobDetail]:
        """Return what Batch knows of jobs."""
        return await self._batch.describe(job_ids)

    async def terminate(self, job_ids: Sequence[str], reason: str) -> dict[str, ServiceError]:
        """End jobs; return those that Batch refused to end, with why."""
        return await self._batch.terminate(job_ids, reason)

    def note_ended(self, job_ids: Iterable[str], reason: str) -> None:
        """Note that jobs were ended by an earlier process, and why."""
        self._batch.note_stopped(job_ids, reason)

    def unknown(self, job_id: str) -> str:
        """Say that Batch does not know a job."""
        return (
            f"Batch does not know job {job_id} in {self._aws.region}; is it the right region and "
            "account, and less than some days old?"
        )

    # --- lists --------------------------------------------------------------------------------

    def list_jobs(
        self, queue: str, since: datetime | None = None
    ) -> AsyncGenerator[list[JobDetail], None]:
        """Yield the jobs of a queue that farcall submitted, in pages of up to 100."""
        return self._batch.listing.jobs(queue, since)

    def list_children(self, job_id: str, status: JobStatus) -> AsyncIterator[list[JobDetail]]:
        """Yield the children of an array that have a status, in pages of up to 1000."""
        return self._batch.listing.children(job_id, status)

    async def position(self, detail: JobDetail) -> int | None:
        """Return the place of a RUNNABLE job among the first 100 of its queue."""
        if detail.status is not JobStatus.RUNNABLE:
            return None
        try:
            front = await self._batch.listing.front(detail.queue_arn or detail.queue)
        except ServiceError:  # it needs a permission of its own, and is but a help
            return None
        return front.index(detail.job_id) + 1 if detail.job_id in front else None

    # --- beside -------------------------------------------------------------------------------

    def links(self, detail: JobDetail) -> dict[str, str]:
        """Return pages of the AWS console, where AWS itself is asked."""
        if not self._aws.has_console:
            return {}
        region = self._aws.region
        links = {
            "job": console_urls.job_url(region, detail),
            "queue": console_urls.queue_url(region, detail),
            "log": console_urls.log_url(region, detail),
        }
        return {name: url for name, url in links.items() if url}

    def log(self, detail: JobDetail, stream: str) -> Log:
        """Return a CloudWatch log."""
        return cloudwatch.CloudWatchLog(self._aws, detail.log_group, stream)

    async def close(self) -> None:
        """End the registrations that nobody waits for any more."""
        await self._batch.close()


def _roles(settings: Settings) -> tuple[str, str]:
    return settings.batch_job_role_name, settings.batch_execution_role_name


def _request(job: JobSpec, definition_arn: str) -> dict[str, Any]:
    return job_request(
        job.settings,
        name=job.name,
        definition_arn=definition_arn,
        environment=job.environment,
        size=job.size,
    )


def _refused(request: Mapping[str, Any], error: ServiceError) -> Exception:
    """Say which option is to blame for a refused SubmitJob, or that it was the job itself."""
    if "queue" in str(error).lower():
        return SettingsError(
            f"batch_queue is {request['jobQueue']!r}: {error}; set batch_queue to a queue that "
            "exists in this region and is ENABLED",
            option="batch_queue",
        )
    return SubmissionError(f"job {request['jobName']} was not accepted: {error}")
