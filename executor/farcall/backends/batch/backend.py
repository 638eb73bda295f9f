"""AWS Batch backend: implements `farcall.backends.base.Backend` for AWS Batch."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from farcall.aws import console_urls
from farcall.aws.clients import Aws
from farcall.aws.paced_client import Tries
from farcall.backends import groups
from farcall.backends.base import Capabilities, JobSpec, Log, Runtime
from farcall.backends.batch import cloudwatch, doctor, placement, preflight
from farcall.backends.batch.client import DESCRIBE_IDS, Batch
from farcall.backends.batch.documents import (
    LARGEST_ARRAY,
    OWN_PREFIX,
    Definition,
    definition,
    job_request,
)
from farcall.backends.batch.edited_requests import edited_definition, edited_request
from farcall.backends.batch.preflight import Resources
from farcall.config.settings import Settings
from farcall.model.errors import ServiceError, SettingsError, SubmissionError
from farcall.model.findings import Finding
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.pacing import Ticket

_log = logging.getLogger("farcall")

_ACCOUNT = "ACCOUNT"
"""Placeholder for the account number in ARNs, if requests are not permitted."""

_NEW_DEFINITION = re.compile("definition.*not found", re.IGNORECASE)
_OLD_DEFINITION = re.compile("definition.*active", re.IGNORECASE)
"""Batch calls a deregistered definition inactive, or not active."""


class BatchBackend:
    """AWS Batch in one account and region.

    `farcall.backends.base.Backend` documents the methods.

    Args:
        access: The open clients.
        pace: Factor on the maximum request rates.
    """

    name = "batch"
    capabilities = Capabilities(
        largest_array=LARGEST_ARRAY,
        described_together=DESCRIBE_IDS,
        longest_log_line_bytes=cloudwatch.LARGEST_EVENT_BYTES,
        log_reads_per_s=cloudwatch.READS_PER_S,
    )

    def __init__(self, access: Aws, *, pace: float = 1) -> None:
        self._aws = access
        self._batch = Batch(access, pace=pace)
        self._resources: dict[tuple[str, ...], Resources] = {}
        self._definitions: dict[tuple[str, Runtime | None], str] = {}
        self._images: dict[tuple[str, ...], preflight.Image] = {}
        self.meter = self._batch.meter

    # --- before submission ---------------------------------------------------------------------

    async def check(self, settings: Settings) -> None:
        """Check that queue, roles and log group exist."""
        resources = await preflight.check(self._aws, self._batch, settings)
        self._resources[_platform(settings)] = resources

    async def reach(self) -> list[Finding]:
        """Check that Batch responds in the region."""
        return await doctor.region(self._aws)

    def examine(
        self, settings: Settings, *, answers: bool
    ) -> Mapping[str, Awaitable[Iterable[Finding]]]:
        """Return the checks of queue, roles, log group, resources and image."""
        return doctor.checks(self._aws, self._batch, settings, answers=answers)

    async def needs_runtime(self, settings: Settings, *, offline: bool = False) -> bool:
        """Return whether tasks run in the stock image."""
        image = preflight.offline_image(settings) if offline else await self._image(settings)
        return image.is_stock

    async def _image(self, settings: Settings) -> preflight.Image:
        """Return the tasks' image, looked up once."""
        options = ("image", "stock_image_uri", "batch_job_definition_name")
        key = tuple(getattr(settings, option) for option in options)
        if key not in self._images:
            self._images[key] = await preflight.find_image(self._batch, settings)
        return self._images[key]

    async def plan(self, job: JobSpec, *, offline: bool = False) -> dict[str, Any]:
        """Return the RegisterJobDefinition and the SubmitJob request."""
        known = None
        if offline:
            wanted = self._write_offline(job)
        else:
            wanted = await self._write(job)
            known = await self._batch.find_definition(wanted.name)
        arn = known["jobDefinitionArn"] if known else f"(ARN of {wanted.name})"
        return {
            "definition": {
                "name": wanted.name,
                "registered": None if offline else known is not None,
            },
            "RegisterJobDefinition": {"jobDefinitionName": wanted.name, **wanted.document},
            "SubmitJob": _request(job, arn),
        }

    def _offline_arn(self, role: str) -> str:
        """Return a role's ARN with a placeholder for the account."""
        is_name = role and not role.startswith("arn:")
        return preflight.role_arn(self._aws.region, _ACCOUNT, role) if is_name else role

    def _write_offline(self, job: JobSpec) -> Definition:
        settings = job.settings
        if job.requests is not None:
            return edited_definition(job.requests, {})
        return definition(
            job,
            image=preflight.offline_image(settings).uri,
            region=self._aws.region,
            job_role=self._offline_arn(settings.batch_job_role_name),
            execution_role=self._offline_arn(settings.batch_execution_role_name),
        )

    async def _find(self, settings: Settings) -> Resources:
        """Return the resources that the options name, looked up once."""
        if _platform(settings) not in self._resources:
            await self.check(settings)
        return self._resources[_platform(settings)]

    async def _write(self, job: JobSpec) -> Definition:
        settings = job.settings
        resources = await self._find(settings)
        if job.requests is not None:
            arns = resources.job_role, resources.execution_role
            roles = dict(zip(map(self._offline_arn, _roles(settings)), arns, strict=True))
            return edited_definition(job.requests, roles)
        return definition(
            job,
            image="" if job.groups else (await self._image(settings)).uri,
            region=self._aws.region,
            job_role=resources.job_role,
            execution_role=resources.execution_role,
        )

    # --- jobs ---------------------------------------------------------------------------------

    async def prepare(self, job: JobSpec) -> None:
        """Register the job definition, and check the request against Batch's limits."""
        if not job.is_command and (job.settings.fingerprint, job.runtime) in self._definitions:
            return  # a task with the same options was checked before
        if job.requests is None:
            environments = (await self._find(job.settings)).environments
            for each in groups.each(job):
                try:
                    placement.check(environments, each, job.nodes)
                except SettingsError:  # the next job must see any fix made meanwhile
                    self._resources.pop(_platform(job.settings), None)
                    raise
                if hint := placement.hint(each):
                    _log.warning("memory is %g GiB%s", each.memory, hint)
        _request(job, await self._define(job))

    async def _define(self, job: JobSpec) -> str:
        """Return the ARN of a job's definition, looked up once for equal options."""
        if job.definition:
            return job.definition  # with its revision, which Batch also accepts
        key = job.settings.fingerprint, job.runtime
        arn = None if job.is_command else self._definitions.get(key)
        if arn is None:
            arn = await self._batch.ensure_definition(await self._write(job))
            if not job.is_command:
                self._definitions[key] = arn
        return arn

    async def submit(self, job: JobSpec, ticket: Ticket) -> str:
        """Send a SubmitJob request; return the job's ID."""
        request = _request(job, await self._define(job))
        tries = Tries(self._aws.timing.defined_retry_s)
        while True:
            try:
                return await self._batch.submit(request, ticket)
            except ServiceError as error:
                if error.sent or error.code != "ClientException":
                    raise
                ticket.record_refused()
                again = await self._redefine(job, request, error)
                try:
                    await tries.wait_after(error, again=again)
                except ServiceError as last:
                    raise _refused(request, last) from error

    async def _redefine(self, job: JobSpec, request: dict[str, Any], error: ServiceError) -> bool:
        """Return whether a refused request may be repeated with a new definition.

        Batch's own services receive a new definition one after another, and another process may
        have deregistered a definition that contains a command.
        """
        if _NEW_DEFINITION.search(str(error)):
            return True
        if not (job.is_command and _OLD_DEFINITION.search(str(error))):
            return False
        old = request["jobDefinition"]
        request["jobDefinition"] = await self._batch.ensure_definition(
            await self._write(job), refresh=True
        )
        return bool(request["jobDefinition"] != old)

    async def find(self, name: str, queue: str) -> list[str]:
        """Return the IDs of a queue's jobs with a name."""
        return [job.job_id for job in await self._batch.find_named(queue, name)]

    async def describe(self, job_ids: Iterable[str]) -> dict[str, JobDetail]:
        """Return the details of jobs."""
        return await self._batch.describe(job_ids)

    async def requests_of(self, job_id: str) -> dict[str, Any] | None:
        """Return the RegisterJobDefinition and SubmitJob requests for a copy of a job."""
        return await self._batch.requests_of(job_id)

    async def options_of(self, job_id: str) -> dict[str, Any]:
        """Return the options of a submitted job, such as queue, image and roles."""
        return await self._batch.options_of(job_id)

    async def terminate(self, job_ids: Sequence[str], reason: str) -> dict[str, ServiceError]:
        """Terminate jobs; return the errors of those that Batch refused to terminate."""
        return await self._batch.terminate(job_ids, reason)

    async def cancel_waiting(self, job_ids: Sequence[str], reason: str) -> dict[str, ServiceError]:
        """Cancel tasks that have not started."""
        return await self._batch.cancel_waiting(job_ids, reason)

    async def forget(self, detail: JobDetail) -> None:
        """Deregister a definition that contains a job's command; shared definitions stay."""
        if detail.definition.startswith(OWN_PREFIX):
            await self._batch.deregister(detail.definition)

    def unknown(self, job_id: str) -> str:
        """Return the error text for a job that Batch does not know."""
        return (
            f"Batch does not know job {job_id} in {self._aws.region_and_origin}. Run `farcall "
            "list` to list the known jobs: Batch deletes a job some days after its end, and "
            "jobs in other regions and accounts require the options region and profile."
        )

    # --- lists --------------------------------------------------------------------------------

    async def queues(self) -> list[str]:
        """Return the names of all job queues of the region."""
        return await self._batch.queues()

    async def list_named(self, name: str, queue: str) -> list[JobDetail]:
        """Return a queue's jobs with a name, the newest first."""
        try:
            return await self._batch.find_named(queue, name)
        except ServiceError as error:
            await self._refuse_queue(error, queue)
            raise

    async def list_jobs(
        self,
        queue: str,
        since: datetime | None = None,
        *,
        named: str = "",
        foreign: bool = False,
    ) -> AsyncGenerator[list[JobDetail], None]:
        """Yield the jobs of a queue, in pages of up to 100."""
        listed = self._batch.list_jobs(queue, since, named=named, foreign=foreign)
        async with contextlib.aclosing(listed):
            try:
                async for page in listed:
                    yield page
            except ServiceError as error:
                await self._refuse_queue(error, queue)
                raise

    async def _refuse_queue(self, error: ServiceError, queue: str) -> None:
        """Raise a better error if a list was refused because the queue does not exist."""
        if error.code == "ClientException" and "queue" in str(error).lower():
            raise await preflight.unknown_queue(
                self._batch, queue, self._aws.region_and_origin
            ) from error

    def list_children(self, job_id: str, status: JobStatus) -> AsyncIterator[list[JobDetail]]:
        """Yield the child jobs of an array that have a status, in pages of up to 1000."""
        return self._batch.list_children(job_id, status)

    async def positions(self, queue: str) -> dict[str, int]:
        """Return the positions of the first 100 RUNNABLE jobs of a queue, by job ID."""
        try:
            front = await self._batch.front(queue)
        except ServiceError:  # optional, and needs its own permission
            return {}
        return {job_id: place for place, job_id in enumerate(front, 1)}

    # --- links and logs ------------------------------------------------------------------------

    def links(self, detail: JobDetail) -> dict[str, str]:
        """Return URLs of the AWS console, if jobs run on AWS itself."""
        if not self._aws.has_console:
            return {}
        region = self._aws.region
        links = {
            "job": console_urls.job_url(region, detail),
            "queue": console_urls.queue_url(region, detail),
            "log": console_urls.log_url(region, detail),
        }
        return {name: url for name, url in links.items() if url}

    def log(self, group: str, stream: str, since: datetime | None = None) -> Log:
        """Return a log stream in CloudWatch."""
        return cloudwatch.CloudWatchLog(self._aws, group, stream, since)

    async def close(self) -> None:
        """Cancel registrations that no caller waits for."""
        await self._batch.close()


def _platform(settings: Settings) -> tuple[str, ...]:
    return settings.queue, *_roles(settings)


def _roles(settings: Settings) -> tuple[str, str]:
    return settings.batch_job_role_name, settings.batch_execution_role_name


def _request(job: JobSpec, arn: str) -> dict[str, Any]:
    write = job_request if job.requests is None else edited_request
    return write(job, arn)


def _refused(request: Mapping[str, Any], error: ServiceError) -> Exception:
    """Return the error of a refused SubmitJob: about the option, or the job itself."""
    if "queue" in str(error).lower():
        return SettingsError(
            f"queue is {request['jobQueue']!r}: {error}. Set queue to a queue that exists in "
            "this region and is ENABLED.",
            option="queue",
        )
    return SubmissionError(f"Batch rejected job {request['jobName']}: {error}")
