"""Lists of Kubernetes's jobs: of a namespace or a queue, and the tasks of an array."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from farcall.backends.kubernetes import describe, resources, volcano
from farcall.backends.kubernetes.client import Kube
from farcall.backends.kubernetes.lookup import Found, Lookup
from farcall.backends.kubernetes.names import (
    MANAGED_LABEL,
    MANAGER,
    NAME_ANNOTATION,
    QUEUE_LABEL,
    SUBMITTED_ANNOTATION,
    object_name,
    run_label,
)
from farcall.backends.kubernetes.pod_states import Pod
from farcall.backends.kubernetes.refusals import KubeError
from farcall.backends.kubernetes.watch import items_of, name_of, pages
from farcall.model.jobs import JobDetail, JobStatus

_PAGE = 100
_LONG_AGO = datetime(1970, 1, 2, tzinfo=timezone.utc)
_OPEN = "status.phase!=Succeeded,status.phase!=Failed"


class Listing:
    """Lists jobs of one namespace."""

    def __init__(self, kube: Kube, lookup: Lookup) -> None:
        self._kube = kube
        self._lookup = lookup

    async def named(self, name: str, queue: str) -> list[Found]:
        """Return the jobs of one name; there is one at most, for it is what the Job is called by.

        Args:
            name: As it was wanted, or the Job's own.
            queue: Of which it has to be; empty for any.

        Raises:
            KubeError: The server refused.
        """
        found = (await self._lookup.jobs([object_name(name)])).get(object_name(name))
        if found is None or found.is_deleted or name not in (wanted_name(found.job), found.name):
            return []
        labels = found.job["metadata"].get("labels") or {}
        return [found] if not queue or labels.get(QUEUE_LABEL) == run_label(queue) else []

    async def jobs(
        self,
        queue: str,
        since: datetime | None = None,
        *,
        named: str = "",
        foreign: bool = False,
    ) -> AsyncGenerator[list[JobDetail], None]:
        """Yield jobs, the newest first.

        Kubernetes lists by name, so all are had before the first page.

        Args:
            queue: Of which they have to be; empty for any.
            since: Only what was submitted at that moment or later.
            named: Only those whose names begin so.
            foreign: Whether those that farcall did not submit are among them.

        Raises:
            KubeError: The server refused.
        """
        labels = [] if foreign else [f"{MANAGED_LABEL}={MANAGER}"]
        if queue:
            labels.append(f"{QUEUE_LABEL}={run_label(queue)}")
        params = {"labelSelector": ",".join(labels)} if labels else {}
        found: list[tuple[tuple[datetime, str], dict[str, Any]]] = []
        for path in self._lookup.paths:
            async for page in pages(self._kube, path, params):
                for job in items_of(page):
                    at = submitted_at(job)
                    if at[0] >= (since or _LONG_AGO) and _is_asked_for(job, named):
                        found.append((at, _listed(job)))
        found.sort(key=lambda each: each[0], reverse=True)
        for start in range(0, len(found), _PAGE):
            listed = [job for _, job in found[start : start + _PAGE]]
            pods = await self._lookup.failed_of(listed)
            yield [describe.detail(job, pods.get(name_of(job), [])) for job in listed]

    async def children(self, job_id: str, status: JobStatus) -> AsyncIterator[list[JobDetail]]:
        """Yield the tasks of an array that have a status, in pages.

        Raises:
            KubeError: The server refused.
        """
        job = (await self._lookup.jobs([job_id])).get(job_id)
        if job is None or not job.is_array:
            return
        page: list[JobDetail] = []
        indexes, pods = await self._of_status(job, status)
        for index in indexes:
            child = describe.child(job.job, index, pods.get(index, ()), is_deleted=job.is_deleted)
            if child is not None and child.status is status:
                page.append(child)
            if len(page) == _PAGE:
                yield page
                page = []
        if page:
            yield page

    async def _of_status(
        self, job: Found, status: JobStatus
    ) -> tuple[list[int], Mapping[int, Sequence[Pod]]]:
        """Return the tasks of an array that may have a status, and pods of theirs."""
        completed, failed = job.indexes("completedIndexes"), job.indexes("failedIndexes")
        is_over = describe.detail(job.job, [], is_deleted=job.is_deleted).status.is_final
        if status is JobStatus.SUCCEEDED:
            pods = await self._lookup.in_phases(job, "status.phase=Succeeded") if completed else {}
            return sorted(completed), pods
        if status is JobStatus.FAILED:
            # What had not ended when all was ended is in no list.
            ended = set(range(job.size)) - completed if is_over else failed
            known = self._lookup.failed(job)
            if known is None and ended:
                known = await self._lookup.in_phases(job, "status.phase=Failed")
            return sorted(ended), known or {}
        if is_over:
            return [], {}
        left = sorted(set(range(job.size)) - completed - failed)
        return left, await self._lookup.in_phases(job, _OPEN)

    async def queues(self, scheduler: str) -> list[str]:
        """Return the names of the queues of a scheduler; an empty one stands for all jobs.

        Raises:
            KubeError: The server refused.
        """
        if scheduler == "kueue":
            path = self._kube.path("localqueues", group="kueue.x-k8s.io", version="v1beta1")
        elif scheduler == "volcano":
            path = "/apis/scheduling.volcano.sh/v1beta1/queues"
        else:
            return [""]
        found = []
        try:
            async for page in pages(self._kube, path, {}):
                found += [str(item["metadata"]["name"]) for item in page.get("items") or ()]
        except KubeError as error:
            if error.status not in (403, 404):
                raise
            return [""]
        return found


def wanted_name(job: Mapping[str, Any]) -> str:
    """Return a job's name as it was wanted."""
    metadata = job["metadata"]
    annotations = metadata.get("annotations") or {}
    return str(annotations.get(NAME_ANNOTATION) or metadata["name"])


def submitted_at(job: Mapping[str, Any]) -> tuple[datetime, str]:
    """Return when a job was submitted: by the server, in seconds, then by whoever did."""
    metadata = job["metadata"]
    text = str(metadata.get("creationTimestamp") or "")
    try:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        at = _LONG_AGO
    return at, str((metadata.get("annotations") or {}).get(SUBMITTED_ANNOTATION) or "")


def _is_asked_for(job: Mapping[str, Any], named: str) -> bool:
    is_part = resources.rank(job, 0) > 0
    return not is_part and wanted_name(job).startswith(named)


def _listed(job: dict[str, Any]) -> dict[str, Any]:
    return volcano.as_job(job) if volcano.is_one(job) else job
