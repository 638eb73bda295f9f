"""Paginator of Batch's lists: the jobs of a queue, the children of an array, a queue's front."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from datetime import datetime
from typing import Any

from farcall.aws.paced_client import PacedClient
from farcall.backends.batch.describe import from_summary
from farcall.model.jobs import JobDetail, JobStatus

_OURS = "farcall-"
"""How the definitions begin that farcall submits with; see `farcall.backends.batch.documents`."""

_EVERY_JOB = {"name": "AFTER_CREATED_AT", "values": ["1"]}
"""Without a filter a list has jobs of one status alone."""


class Listing:
    """Lists jobs, one request after the other at the client's pace.

    Args:
        client: For such requests.
        recall: Adds to what is listed of a job what is known here.

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

        They come in pages of up to 100, a request each; children of arrays are not among them.
        What a listing tells is less than a description: no environment, for one.

        Args:
            queue: Name or ARN.
            since: Only what was submitted at that moment or later.
            named: Only those whose names begin so.
            foreign: Whether those that farcall did not submit are among them.

        Raises:
            ServiceError: Batch refused the call, or there is no such queue.
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
        """Yield the children of an array that have a status, in pages of up to 1000.

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
        """Return the IDs of the jobs that are next in a queue: the first 100 RUNNABLE ones.

        Raises:
            ServiceError: Batch refused the call, or there is no such queue.

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
    """Return what a request asks for, which can be one thing alone."""
    if named:
        return {"name": "JOB_NAME", "values": [f"{named}*"]}
    if foreign:
        return _EVERY_JOB
    return {"name": "JOB_DEFINITION", "values": [f"{_OURS}*"]}


def _is_asked_for(job: JobDetail, named: str, *, foreign: bool) -> bool:
    """Tell the rest: the filter of names takes no notice of upper case, nor of definitions."""
    is_ours = foreign or not named or job.definition.startswith(_OURS)
    return is_ours and job.name.startswith(named)
