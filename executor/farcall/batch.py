"""AWS Batch, as the client uses it: definitions, submission, status, the end of a job.

Batch's documents stop here: floors above see `JobDetail` and IDs. Another backend would stand in
this module's place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from farcall import aws
from farcall.aws import Aws
from farcall.definitions import Definition
from farcall.errors import ServiceError, SettingsError, SubmissionError
from farcall.limiter import Limiter
from farcall.states import OWN_REASON, JobDetail, JobStatus

_log = logging.getLogger("farcall")

DESCRIBE_IDS = 100
"""IDs in one DescribeJobs call, https://docs.aws.amazon.com/batch/latest/APIReference/API_DescribeJobs.html"""

_TERMINATE_IDS = 50
_REASON_CHARACTERS = 1024
_SUBMITS_PER_S = 45.0
_CONTROLS_PER_S = 20.0
_THROTTLED = {"TooManyRequestsException", "ThrottlingException", "RequestLimitExceeded"}
_LOOK_AGAIN_S = (0.2, 0.5, 1.0, 2.0, 4.0)
"""Waits before looking for a job whose submission was not answered: lists lag behind."""
_MOST_SENDS = 5
_REGISTRATIONS = 6


class Batch:
    """Batch of one account and region.

    Args:
        access: The open clients.
    """

    def __init__(self, access: Aws) -> None:
        self._aws = access
        self._definitions: dict[str, asyncio.Task[str]] = {}
        self._submits = Limiter(_SUBMITS_PER_S)
        self._controls = Limiter(_CONTROLS_PER_S)

    # --- definitions --------------------------------------------------------------------------

    async def ensure_definition(self, definition: Definition) -> str:
        """Return the ARN of an active definition with this content, registered if there is none.

        Raises:
            SettingsError: Batch refused the definition's content.
            ServiceError: Batch refused the call.
        """
        task = self._definitions.get(definition.name)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = asyncio.ensure_future(self._ensure(definition))
            self._definitions[definition.name] = task
        return await asyncio.shield(task)

    async def _ensure(self, definition: Definition) -> str:
        for wait_s in range(_REGISTRATIONS):
            found = await self.find_definition(definition.name)
            if found:
                return str(found["jobDefinitionArn"])
            try:
                reply = await aws.call(
                    self._aws.batch,
                    "register_job_definition",
                    jobDefinitionName=definition.name,
                    **definition.document,
                )
            except ServiceError as error:
                if "Too many concurrent attempts" not in str(error):
                    raise _explain_registration(error) from error
                await asyncio.sleep(1 + wait_s)  # somebody registers the very same one
            else:
                return str(reply["jobDefinitionArn"])
        raise ServiceError(
            f"{definition.name} could not be registered: others kept registering it",
            operation="RegisterJobDefinition",
        )

    async def find_definition(self, name: str) -> dict[str, Any] | None:
        """Return a definition, or None: the revision that the name says, or the newest active one.

        Args:
            name: Name, name:revision, or ARN.
        """
        short = name.rpartition("/")[2]
        wanted: dict[str, Any] = {"jobDefinitionName": short, "status": "ACTIVE"}
        if ":" in short:
            wanted = {"jobDefinitions": [name]}  # goes with no other parameter
        found: list[dict[str, Any]] = []
        try:
            while True:
                reply = await self._call("describe_job_definitions", **wanted)
                found += reply.get("jobDefinitions", [])
                if not reply.get("nextToken"):
                    break
                wanted["nextToken"] = reply["nextToken"]
        except ServiceError as error:
            if "AccessDenied" not in error.code:
                raise
            _log.debug("definitions cannot be looked up, so one is registered: %s", error)
            return None
        return max(found, key=lambda item: item.get("revision", 0), default=None)

    # --- jobs ---------------------------------------------------------------------------------

    async def submit(self, request: Mapping[str, Any]) -> str:
        """Submit a job exactly once, and return its ID.

        SubmitJob takes no token, so it is never sent again blindly: where no answer came, the
        job is looked up by its name, which must be unique, and adopted if it is there.

        Raises:
            SettingsError: There is no such queue.
            SubmissionError: Batch refused the job.
            ServiceError: The credentials don't allow it, or Batch cannot be reached.
        """
        sends = 0
        while True:
            await self._submits.turn()
            try:
                reply = await aws.call(self._aws.submitter, "submit_job", **request)
            except ServiceError as error:
                if _is_throttling(error):
                    self._submits.throttled()
                    continue
                sends += 1
                found = await self._find_unanswered(request, error) if error.sent else None
                if found:
                    return found
                if sends >= _MOST_SENDS or not _may_send_again(error):
                    raise _explain_submission(request, error) from error
                await asyncio.sleep(sends)
            else:
                self._submits.passed()
                return str(reply["jobId"])

    async def _find_unanswered(
        self, request: Mapping[str, Any], error: ServiceError
    ) -> str | None:
        name = request["jobName"]
        _log.warning("%s; looking whether %s was submitted", error, name)
        for wait_s in _LOOK_AGAIN_S:
            await asyncio.sleep(wait_s)
            reply = await self._call(
                "list_jobs",
                jobQueue=request["jobQueue"],
                filters=[{"name": "JOB_NAME", "values": [name]}],
            )
            for job in reply.get("jobSummaryList", []):
                if job["jobName"] == name:
                    return str(job["jobId"])
        return None

    async def describe(self, job_ids: Iterable[str]) -> dict[str, JobDetail]:
        """Return what Batch knows of jobs; unknown ones, and some just submitted, are missing.

        Raises:
            ServiceError: Batch refused the call.
        """
        found = {}
        for ids in _groups(job_ids, DESCRIBE_IDS):
            reply = await self._call("describe_jobs", jobs=ids)
            for job in reply.get("jobs", []):
                found[job["jobId"]] = JobDetail.from_describe(job)
        return found

    async def list_children(self, parent_id: str, status: JobStatus) -> list[int]:
        """Return the numbers of an array job's children that have a status.

        Raises:
            ServiceError: Batch refused the call.
        """
        found = []
        token: dict[str, str] = {}
        while True:
            reply = await self._call(
                "list_jobs", arrayJobId=parent_id, jobStatus=status.value, **token
            )
            for job in reply.get("jobSummaryList", []):
                index = job["jobId"].rpartition(":")[2]
                if index.isdigit() and job.get("status", status.value) == status.value:
                    found.append(int(index))
            if not reply.get("nextToken"):
                return found
            token = {"nextToken": reply["nextToken"]}

    async def terminate(self, job_ids: Sequence[str], reason: str) -> None:
        """End jobs, whatever their status; for those that have ended already it does nothing.

        Args:
            job_ids: Jobs, array jobs with all their children, or single children.
            reason: Batch keeps it as the status reason, up to 1024 characters.

        Raises:
            ServiceError: Batch refused a call.
        """
        reason = f"{OWN_REASON}{reason}"[:_REASON_CHARACTERS]
        try:
            await self._terminate(job_ids, reason)
        except asyncio.CancelledError:
            # The event loop's end cancels each task once; asking twice does no harm.
            await self._terminate(job_ids, reason)
            raise

    async def _terminate(self, job_ids: Sequence[str], reason: str) -> None:
        if hasattr(self._aws.batch, "terminate_jobs"):  # from botocore 1.43.93 on
            for ids in _groups(job_ids, _TERMINATE_IDS):
                await self._terminate_together(ids, reason)
            return
        requests = [self._call("terminate_job", jobId=i, reason=reason) for i in job_ids]
        done = await asyncio.gather(*requests, return_exceptions=True)
        for error in done:
            if isinstance(error, BaseException):
                raise error

    async def _terminate_together(self, job_ids: list[str], reason: str) -> None:
        while job_ids:
            reply = await self._call("terminate_jobs", jobs=job_ids, reason=reason)
            problems = reply.get("errors", [])
            job_ids = [p["job"] for p in problems if p.get("code") in _THROTTLED]
            for problem in problems:
                if problem["job"] not in job_ids:
                    _log.warning("TerminateJobs of %s: %s", problem["job"], problem["message"])
            if job_ids:
                self._controls.throttled()

    async def _call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """Make a call that may be repeated, in a lane that never waits behind submissions."""
        while True:
            await self._controls.turn()
            try:
                reply = await aws.call(self._aws.batch, operation, **parameters)
            except ServiceError as error:
                if not _is_throttling(error):
                    raise
                self._controls.throttled()
            else:
                self._controls.passed()
                return reply


def _groups(items: Iterable[Any], size: int) -> Iterable[list[Any]]:
    iterator = iter(items)
    while group := list(islice(iterator, size)):
        yield group


def _is_throttling(error: ServiceError) -> bool:
    return error.status == 429 or error.code in _THROTTLED


def _may_send_again(error: ServiceError) -> bool:
    """Whether the request did nothing and may do something the next time."""
    if error.status >= 500 or error.status == 0:
        return True
    # Batch's own services learn of a new definition one after the other.
    return "definition" in str(error).lower() and "not found" in str(error).lower()


def _explain_submission(request: Mapping[str, Any], error: ServiceError) -> Exception:
    text = str(error).lower()
    if error.code == "ClientException" and "queue" in text:
        return SettingsError(
            f"batch_queue is {request['jobQueue']!r}: {error}; set batch_queue to a queue that "
            "exists in this region and is ENABLED",
            option="batch_queue",
        )
    if error.code == "ClientException":
        return SubmissionError(f"job {request['jobName']} was not accepted: {error}")
    return error


def _explain_registration(error: ServiceError) -> Exception:
    if error.code != "ClientException":
        return error
    return SettingsError(
        f"the job definition made of the options was refused: {error}; check "
        "container_image_uri, the roles and job_definition_extra",
        option="job_definition_extra",
    )
