"""Paginated lists of Batch: a queue's jobs and front, an array's child jobs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from datetime import datetime
from typing import Any

from farcall.aws.paced_client import PacedClient
from farcall.backends.batch.describe import from_summary
from farcall.model.jobs import JobDetail, JobStatus

_OURS = "farcall-"
"""Prefix of farcall's job definitions; see `farcall.backends.batch.documents`."""

_EVERY_JOB = {"name": "AFTER_CREATED_AT", "values": ["1"]}
"""Filter for all jobs; without a filter, a list contains jobs of one status only."""


class Listing:
    """Lists of jobs, requested one after the other at the client's pace.

    Args:
        client: Makes the requests.
        recall: Adds local knowledge to a listed job.

    Source:
        https://docs.aws.amazon.com/batch/latest/APIReference/API_ListJobs.html
    """

    def __init__(self, client: PacedClient, recall: Callable[[JobDetail], JobDetail]) -> None:
        self._client = client
        self._recall = recall

    async def queues(self) -> list[str]:
        """Return the names of all job queues of the region.

        Raises:
            ServiceError: Batch refused the call.
        """
        found: list[str] = []
        token: dict[str, Any] = {}
        while True:
            reply = await self._client.call("describe_job_queues", **token)
            found += [queue["jobQueueName"] for queue in reply.get("jobQueues", [])]
            if not reply.get("nextToken"):
                return found
            token = {"nextToken": reply["nextToken"]}

    async def jobs(
        self,
        queue: str,
        since: datetime | None = None,
        *,
        named: str = "",
        foreign: bool = False,
    ) -> AsyncGenerator[list[JobDetail], None]:
        """Yield the jobs of a queue, in any status, the newest first.

        Each page of up to 100 jobs takes one request; child jobs of arrays are not included.
        Listed
        jobs have fewer fields than described jobs, for example no environment.

        Args:
            queue: Name or ARN.
            since: Only jobs submitted at that time or later.
            named: Only jobs whose names start with this text.
            foreign: Whether to include jobs that farcall did not submit.

        Raises:
            ServiceError: Batch refused the call, or the queue does not exist.
        """
        token: dict[str, Any] = {}
        wanted = _filter(named, foreign=foreign)
        while True:
            reply = await self._client.call("list_jobs", jobQueue=queue, filters=[wanted], **token)
            found = self._read(reply)
            young = [job for job in found if since is None or not _is_before(job, since)]
            page = [job for job in young if _is_asked_for(job, named, foreign=foreign)]
            if page:
                yield page
            if len(young) < len(found) or not reply.get("nextToken"):
                return
            token = {"nextToken": reply["nextToken"]}

    async def children(self, parent_id: str, status: JobStatus) -> AsyncIterator[list[JobDetail]]:
        """Yield an array's child jobs that have a status, in pages of up to 1000.

        Raises:
            ServiceError: Batch refused the call.
        """
        token: dict[str, Any] = {}
        while True:
            reply = await self._client.call(
                "list_jobs", arrayJobId=parent_id, jobStatus=status.value, **token
            )
            found = self._read(reply)
            yield [child for child in found if child.status is status and child.is_child]
            if not reply.get("nextToken"):
                return
            token = {"nextToken": reply["nextToken"]}

    async def front(self, queue: str) -> list[str]:
        """Return the IDs of the first 100 RUNNABLE jobs of a queue.

        Raises:
            ServiceError: Batch refused the call, or the queue does not exist.

        Source:
            https://docs.aws.amazon.com/batch/latest/APIReference/API_GetJobQueueSnapshot.html
        """
        reply = await self._client.call("get_job_queue_snapshot", jobQueue=queue)
        jobs = reply.get("frontOfQueue", {}).get("jobs", [])
        return [job["jobArn"].rpartition(":job/")[2] for job in jobs]

    def _read(self, reply: Mapping[str, Any]) -> list[JobDetail]:
        listed = map(from_summary, reply.get("jobSummaryList", []))
        return [self._recall(job) for job in listed]


def _is_before(job: JobDetail, since: datetime) -> bool:
    return job.created_at is not None and job.created_at < since


def _filter(named: str, *, foreign: bool) -> dict[str, Any]:
    """Return the filter of a request, which can contain only one condition."""
    if named:
        return {"name": "JOB_NAME", "values": [f"{named}*"]}
    if foreign:
        return _EVERY_JOB
    return {"name": "JOB_DEFINITION", "values": [f"{_OURS}*"]}


def _is_asked_for(job: JobDetail, named: str, *, foreign: bool) -> bool:
    """Apply the other conditions: the name filter ignores case and definitions."""
    is_ours = foreign or not named or job.definition.startswith(_OURS)
    return is_ours and job.name.startswith(named)
