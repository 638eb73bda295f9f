"""Lookup of Kubernetes jobs and pods, with few requests.

Watched jobs need no requests. Other jobs are requested together, by the label on all of a job's
objects. Pods are requested again only when their Job has changed, and while they wait: then at
growing intervals, because a Job does not change if its pod's image cannot be pulled.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from farcall.backends.kubernetes import names, nodes, volcano
from farcall.backends.kubernetes.client import Kube
from farcall.backends.kubernetes.deleted_pods import recorded
from farcall.backends.kubernetes.describe import Description
from farcall.backends.kubernetes.error_translation import KubeError
from farcall.backends.kubernetes.indexes import parse_indexes
from farcall.backends.kubernetes.names import (
    INDEX_LABEL,
    JOB_LABEL,
    MANAGED_LABEL,
    MANAGER,
    NAME_ANNOTATION,
    QUEUE_LABEL,
    SUBMITTED_ANNOTATION,
    object_name,
    run_label,
)
from farcall.backends.kubernetes.pods import Pod, moment, read_pod
from farcall.backends.kubernetes.watch import (
    PAGE,
    ClusterWatch,
    items_of,
    name_of,
    pages,
    version_of,
)
from farcall.model import clock
from farcall.model.jobs import JobDetail, JobStatus

_TOGETHER = 50
"""Maximum names in one selector, which is part of a URL.

Some proxies accept only 8 KB.
"""

_FIRST_POLL_S = 0.5
_LONGEST_POLL_S = 15.0
_MOST_POLLS = 5000
_MOST_EVENTS = 100
_MOST_PENDING = 20
"""Maximum number of waiting pods in a response; each takes some kilobytes of JSON."""

_MOST_OPEN = 200
_LOST_AFTER = timedelta(minutes=1)
"""Minimum age of a job whose nodes may be lost: a cluster notices after 40 seconds.

https://kubernetes.io/docs/concepts/architecture/nodes/#node-controller
"""

_LOST_POLL_S = 60.0
_PROGRESS_POLL_S = 60.0
"""Minimum interval between polls of a job some of whose tasks have run.

A map of 400 short tasks otherwise needs a list of pods or events every few seconds.
"""

_BEHIND_S = 1.0
_BEHIND_STEP_S = 0.02

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_OWN_JOB_NAME = "batch.kubernetes.io/job-name"
_KUEUE_UID = "kueue.x-k8s.io/job-uid"
_FINAL = ("Complete", "Failed")
_NEVER = float("inf")
_PAGE = 100
_LONG_AGO = datetime(1970, 1, 2, tzinfo=UTC)
_OPEN = "status.phase!=Succeeded,status.phase!=Failed"


@dataclass(frozen=True, slots=True)
class Found:
    """An existing job, or a recently deleted one.

    Attributes:
        name: Its ID.
        job: Its document. If it consists of several objects, the main object's document, ended if
            the combined job has ended.
        objects: All of its documents.
        is_deleted: Whether it was deleted.
    """

    name: str
    job: dict[str, Any]
    objects: tuple[dict[str, Any], ...]
    is_deleted: bool = False

    @property
    def version(self) -> str:
        """A text that changes with each change of the job."""
        return " ".join(version_of(each) for each in self.objects)

    @property
    def size(self) -> int:
        """Number of its indexes."""
        return int((self.job.get("spec") or {}).get("completions") or 1)

    @property
    def parts(self) -> tuple[dict[str, Any], ...]:
        """All of its documents if there are more than its Job."""
        return self.objects if len(self.objects) > 1 or volcano.is_one(self.job) else ()

    @property
    def is_array(self) -> bool:
        """Whether its indexes are independent tasks, not nodes of one job."""
        return self.size > 1 and not (_is_multi_node(self.job) or volcano.is_one(self.job))

    @property
    def is_ours(self) -> bool:
        """Whether its pods have the label of farcall's jobs."""
        return JOB_LABEL in (self.job["metadata"].get("labels") or {})

    @property
    def is_final(self) -> bool:
        """Whether nothing of it runs any more."""
        return self.is_deleted or any(
            each.get("type") in _FINAL and each.get("status") == "True"
            for each in self.status.get("conditions") or ()
        )

    @property
    def has_failed(self) -> bool:
        """Whether it has failed, even if parts of it are still stopping."""
        return nodes.has_failed(self.job)

    @property
    def has_run(self) -> bool:
        """Whether some of its tasks run or have finished."""
        return any(self.status.get(key) for key in ("ready", "completedIndexes", "failedIndexes"))

    @property
    def unready(self) -> int:
        """Number of its pods that exist and do not run: they start, or their node is lost."""
        names = "active", "terminating"
        return sum(int(self.status.get(name) or 0) for name in names) - int(
            self.status.get("ready") or 0
        )

    @property
    def status(self) -> Mapping[str, Any]:
        """The controller's status."""
        reported: Mapping[str, Any] = self.job.get("status") or {}
        return reported

    def description(self, events: Iterable[Mapping[str, Any]] = ()) -> Description:
        """Return its description, with events that explain why it waits."""
        return Description(self.job, events, is_deleted=self.is_deleted, parts=self.parts)

    def indexes(self, field: str) -> frozenset[int]:
        """Return the indexes of ``completedIndexes`` or ``failedIndexes``."""
        return parse_indexes(self.status.get(field))


@dataclass(slots=True)
class _Poll:
    """A cached response, and the time of the next request."""

    entries: list[Any]
    version: str
    next_at: float
    wait_s: float


class Lookup:
    """Finds jobs and pods of one namespace.

    Args:
        kube: The API server.
        has_volcano: Whether jobs may be Volcano jobs.
    """

    def __init__(self, kube: Kube, *, has_volcano: bool) -> None:
        self._kube = kube
        self._has_volcano = has_volcano
        self._polls: dict[str, _Poll] = {}
        self.watch = ClusterWatch(kube)

    # --- jobs ---------------------------------------------------------------------------------

    async def jobs(self, names: Iterable[str]) -> dict[str, Found]:
        """Return the existing jobs among the names.

        Raises:
            KubeError: The server refused.
        """
        by_name: dict[str, Found] = {}
        missing: list[str] = []
        for name in dict.fromkeys(names):
            seen = self.watch.get(name)
            if seen is not None:
                by_name |= _whole(name, seen.objects.values(), is_deleted=seen.is_deleted)
            elif _NAME.fullmatch(name):
                missing.append(name)
        if len(missing) == 1:
            return by_name | await self._one(missing[0])
        labelled = await asyncio.gather(*map(self._labelled, _groups(missing, _TOGETHER)))
        for each in labelled:
            by_name |= each
        others = [name for name in missing if name not in by_name]
        for one in await asyncio.gather(*map(self._one, others)):
            by_name |= one
        return by_name

    async def _labelled(self, names: Sequence[str]) -> dict[str, Found]:
        objects: dict[str, list[dict[str, Any]]] = {}
        params = {"labelSelector": _any_of(JOB_LABEL, names)}
        for path in self.paths:
            async for page in pages(self._kube, path, params):
                for document in items_of(page):
                    objects.setdefault(name_of(document), []).append(document)
        jobs: dict[str, Found] = {}
        for name, several in objects.items():
            jobs |= _whole(name, several)
        return jobs

    async def _one(self, name: str) -> dict[str, Found]:
        for path in self.paths:
            try:
                document = await self._kube.request("GET", f"{path}/{name}")
            except KubeError as error:
                if not error.is_missing:
                    raise
                continue
            jobs = _whole(name, [document])
            # A job with nodes of several groups has more objects than this one.
            return await self._labelled([name]) if _is_multi_node(document) else jobs
        return {}

    @property
    def paths(self) -> list[str]:
        """Paths of the lists that contain jobs."""
        own = [self._kube.path("jobs", group="batch")]
        volcanos = self._kube.path("jobs", group="batch.volcano.sh", version="v1alpha1")
        return [*own, volcanos] if self._has_volcano else own

    # --- pods ---------------------------------------------------------------------------------

    async def pods(self, jobs: Iterable[Found]) -> dict[str, list[Pod]]:
        """Return all pods of small jobs, by job.

        Raises:
            KubeError: The server refused.
        """
        by_job: dict[str, list[Pod]] = {}
        unread: dict[str, Found] = {}
        documents: dict[str, Mapping[str, Any]] = {}
        for job in jobs:
            documents[job.name] = job.job
            if (kept := self._kept(job, job.name)) is not None:
                by_job[job.name] = kept
            else:
                unread[job.name] = job
        ours = [name for name, job in unread.items() if job.is_ours]
        params = [{"labelSelector": _any_of(JOB_LABEL, each)} for each in _groups(ours, _TOGETHER)]
        foreign = [name for name, job in unread.items() if not job.is_ours]
        lists = [self._list(each) for each in params]
        lists += [
            self._list({"labelSelector": f"{_OWN_JOB_NAME}={name}"}, name) for name in foreign
        ]
        new: dict[str, list[Pod]] = {name: [] for name in unread}
        for listed in await asyncio.gather(*lists):
            for pod in listed:
                new.setdefault(pod.job, []).append(pod)
        for name, job in unread.items():
            self._keep(job, name, new[name])
            by_job[name] = new[name]
        silent = [name for name, job in unread.items() if job.has_failed and not new[name]]
        await asyncio.gather(*map(self._add_pods, silent))
        return {
            name: self._with_deleted(documents[name], listed) for name, listed in by_job.items()
        }

    async def _add_pods(self, name: str) -> None:
        """Wait a moment for the watch of a failed job's pods.

        Deleted pods are in no list, and their watch may lag slightly behind the jobs' watch.
        """
        until = clock.now() + _BEHIND_S
        while clock.now() < until:
            seen = self.watch.get(name)
            if seen is None or seen.failed:
                return
            await asyncio.sleep(_BEHIND_STEP_S)

    async def children(self, job: Found, indexes: Iterable[int]) -> dict[int, list[Pod]]:
        """Return the pods of some of an array's tasks, by index.

        Raises:
            KubeError: The server refused.
        """
        failed = self.failed(job)
        by_task: dict[int, list[Pod]] = {}
        missing: list[int] = []
        known = job.indexes("failedIndexes") if failed is not None else frozenset()
        for index in indexes:
            if failed is not None and index in known and index in failed:
                by_task[index] = failed[index]
            else:
                missing.append(index)
        for group in _groups(missing, _TOGETHER):
            key = f"{job.name}:{','.join(map(str, group))}"
            pods = self._kept(job, key)
            if pods is None:
                selector = f"{_of_job(job)},{_any_of(INDEX_LABEL, map(str, group))}"
                pods = await self._list({"labelSelector": selector}, job.name)
                self._keep(job, key, pods)
            gone = [p for p in self._with_deleted(job.job, []) if p.index in set(group)]
            by_task |= by_index((*gone, *pods))
        return by_task

    def failed(self, job: Found) -> dict[int, list[Pod]] | None:
        """Return an array's failed pods, by index; None if they must be requested."""
        seen = self.watch.get(job.name) if self.watch.knows_failed(job.name) else None
        return None if seen is None else by_index(seen.failed.values())

    async def waiting(self, job: Found) -> list[Pod]:
        """Return some of an array's waiting pods.

        Raises:
            KubeError: The server refused.
        """
        unready = job.unready
        if job.is_final or unready <= 0:
            return []
        params = {"labelSelector": _of_job(job), "fieldSelector": "status.phase=Pending"}
        # Tasks that are starting count too; if some have run, probably nothing is blocked.
        least_s = _PROGRESS_POLL_S if job.has_run else 0
        pending = await self._some(job, f"{job.name}?", params, _MOST_PENDING, least_s)
        is_new = submitted_at(job.job)[0] > datetime.now(UTC) - _LOST_AFTER
        if is_new or len(pending) >= min(unready, _MOST_PENDING):
            return pending
        # Some tasks neither wait nor run: their containers start, or their nodes are lost.
        params["fieldSelector"] = _OPEN
        others = await self._some(job, f"{job.name}~", params, _MOST_OPEN, _LOST_POLL_S)
        return [*pending, *(pod for pod in others if pod.is_unreachable)]

    async def _some(
        self, job: Found, key: str, params: Mapping[str, str], most: int, least_s: float
    ) -> list[Pod]:
        pods = self._kept(job, key, whatever_changed=True)
        if pods is None:
            path = self._kube.path("pods")
            page = await self._kube.request("GET", path, params={**params, "limit": most})
            pods = [read_pod(document) for document in items_of(page)]
            self._keep(job, key, pods, is_open=True, least_s=least_s)
        return pods

    async def failed_of(self, jobs: Iterable[Mapping[str, Any]]) -> dict[str, list[Pod]]:
        """Return failed pods of the failed Jobs, by job; for large Jobs only some.

        Raises:
            KubeError: The server refused.
        """
        failed = {name_of(job): job for job in jobs if nodes.has_failed(job)}
        pods: dict[str, list[Pod]] = {}
        for group in _groups(failed, _TOGETHER):
            params = {
                "labelSelector": _any_of(JOB_LABEL, group),
                "fieldSelector": "status.phase=Failed",
                "limit": PAGE,
            }
            page = await self._kube.request("GET", self._kube.path("pods"), params=params)
            for pod in map(read_pod, items_of(page)):
                pods.setdefault(pod.job, []).append(pod)
        return {name: self._with_deleted(job, pods.get(name, [])) for name, job in failed.items()}

    async def in_phases(self, job: Found, phases: str) -> dict[int, list[Pod]]:
        """Return an array's pods in some phases, by index.

        Raises:
            KubeError: The server refused.
        """
        params = {"labelSelector": _of_job(job), "fieldSelector": phases}
        return by_index(await self._list(params, job.name))

    async def _list(self, params: Mapping[str, str], name: str = "") -> list[Pod]:
        pods = []
        async for page in pages(self._kube, self._kube.path("pods"), params):
            pods += [read_pod(document) for document in items_of(page)]
        return [replace(pod, job=name) for pod in pods] if name else pods

    # --- events -------------------------------------------------------------------------------

    async def events(self, job: Found, pods: Sequence[Pod]) -> list[dict[str, Any]]:
        """Return documents, other than pods, that explain why a job does not start.

        Without the permission to read them, the list is empty.

        Raises:
            KubeError: The server refused for another reason.
        """
        query = await self._explained_by(job, pods)
        if query is None:
            return []
        path, params = query
        key = f"{job.name}!"
        documents = self._kept(job, key, whatever_changed=job.has_run)
        if documents is None:
            try:
                page = await self._kube.request(
                    "GET", path, params={**params, "limit": _MOST_EVENTS}
                )
            except KubeError as error:
                if error.status not in (403, 404):
                    raise
                page = {}
            documents = list(items_of(page))
            least_s = _PROGRESS_POLL_S if job.has_run else 0
            self._keep(job, key, documents, is_open=True, least_s=least_s)
        return documents

    async def _explained_by(
        self, job: Found, pods: Sequence[Pod]
    ) -> tuple[str, dict[str, str]] | None:
        """Return the list that explains why a job does not start; None if not needed."""
        metadata, spec = job.job["metadata"], job.job.get("spec") or {}
        if job.is_final or job.status.get("ready"):
            return None
        if spec.get("suspend"):
            if names.KUEUE_QUEUE not in (metadata.get("labels") or {}):
                return None
            path = await self._kube.kueue_path("workloads")
            return path, {"labelSelector": f"{_KUEUE_UID}={metadata.get('uid')}"}
        kind, name = "Job", job.name
        waiting = next((pod for pod in pods if pod.is_pending), None)
        if waiting is not None:
            # A pod without a node has its own reason; events explain why a node cannot start it.
            if not waiting.has_place or waiting.container_reason:
                return None
            kind, name = "Pod", waiting.name
        elif pods or job.status.get("active"):
            return None
        selector = f"involvedObject.kind={kind},involvedObject.name={name}"
        return self._kube.path("events"), {"fieldSelector": selector}

    # --- request intervals ---------------------------------------------------------------------

    def _kept(self, job: Found, key: str, *, whatever_changed: bool = False) -> list[Any] | None:
        poll = self._polls.get(key)
        if poll is None or not (whatever_changed or poll.version == job.version):
            return None
        return poll.entries if clock.now() < poll.next_at else None

    def _keep(
        self,
        job: Found,
        key: str,
        entries: list[Any],
        *,
        is_open: bool = False,
        least_s: float = 0,
    ) -> None:
        before = self._polls.pop(key, None)
        is_same = before is not None and before.version == job.version
        wait_s = min(2 * before.wait_s, _LONGEST_POLL_S) if before and is_same else _FIRST_POLL_S
        wait_s = max(wait_s, least_s)
        next_at = clock.now() + wait_s if is_open or _may_change(job, entries) else _NEVER
        self._polls[key] = _Poll(entries, job.version, next_at, wait_s)
        while len(self._polls) > _MOST_POLLS:
            del self._polls[next(iter(self._polls))]

    def _with_deleted(self, job: Mapping[str, Any], pods: list[Pod]) -> list[Pod]:
        """Add the failed pods that were deleted."""
        seen = self.watch.get(name_of(job))
        gone = {pod.uid: pod for pod in recorded(job)}
        gone |= {pod.uid: pod for pod in (seen.failed.values() if seen else ()) if pod.gone}
        there = {pod.uid for pod in pods}
        return [*(pod for uid, pod in gone.items() if uid not in there), *pods]

    # --- lists --------------------------------------------------------------------------------

    async def list_named(self, name: str, queue: str) -> list[Found]:
        """Return the jobs with a name; at most one, because it is the Job's name.

        Args:
            name: The requested name, or the Job's own.
            queue: The job's queue; empty for any.

        Raises:
            KubeError: The server refused.
        """
        job = (await self.jobs([object_name(name)])).get(object_name(name))
        if job is None or job.is_deleted or name not in (wanted_name(job.job), job.name):
            return []
        labels = job.job["metadata"].get("labels") or {}
        return [job] if not queue or labels.get(QUEUE_LABEL) == run_label(queue) else []

    async def list_jobs(
        self,
        queue: str,
        since: datetime | None = None,
        *,
        named: str = "",
        foreign: bool = False,
    ) -> AsyncGenerator[list[JobDetail], None]:
        """Yield jobs, the newest first; see `farcall.backends.base.Backend.list_jobs`.

        Kubernetes sorts lists by name, so all jobs are fetched before the first page.

        Raises:
            KubeError: The server refused.
        """
        labels = [] if foreign else [f"{MANAGED_LABEL}={MANAGER}"]
        if queue:
            labels.append(f"{QUEUE_LABEL}={run_label(queue)}")
        params = {"labelSelector": ",".join(labels)} if labels else {}
        jobs: list[tuple[tuple[datetime, str], dict[str, Any]]] = []
        for path in self.paths:
            async for page in pages(self._kube, path, params):
                for job in items_of(page):
                    at = submitted_at(job)
                    if at[0] >= (since or _LONG_AGO) and _matches(job, named):
                        jobs.append((at, _listed(job)))
        jobs.sort(key=lambda each: each[0], reverse=True)
        for start in range(0, len(jobs), _PAGE):
            listed = [job for _, job in jobs[start : start + _PAGE]]
            pods = await self.failed_of(listed)
            yield [Description(job).whole(pods.get(name_of(job), [])) for job in listed]

    async def list_children(
        self, job_id: str, status: JobStatus
    ) -> AsyncIterator[list[JobDetail]]:
        """Yield the tasks of an array that have a status, in pages.

        Raises:
            KubeError: The server refused.
        """
        job = (await self.jobs([job_id])).get(job_id)
        if job is None or not job.is_array:
            return
        page: list[JobDetail] = []
        indexes, pods = await self._of_status(job, status)
        described = job.description()
        for index in indexes:
            child = described.task(index, pods.get(index, ()))
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
        """Return the tasks of an array that may have a status, and their pods."""
        completed, failed = job.indexes("completedIndexes"), job.indexes("failedIndexes")
        is_over = job.description().whole([]).status.is_final
        if status is JobStatus.SUCCEEDED:
            pods = await self.in_phases(job, "status.phase=Succeeded") if completed else {}
            return sorted(completed), pods
        if status is JobStatus.FAILED:
            # Tasks that had not ended when the job was terminated are in no list.
            ended = set(range(job.size)) - completed if is_over else failed
            known = self.failed(job)
            if known is None and ended:
                there = await self.in_phases(job, "status.phase=Failed")
                listed = [pod for several in there.values() for pod in several]
                known = by_index(self._with_deleted(job.job, listed))
            return sorted(ended), known or {}
        if is_over:
            return [], {}
        left = sorted(set(range(job.size)) - completed - failed)
        return left, await self.in_phases(job, _OPEN)

    async def queues(self, scheduler: str) -> list[str]:
        """Return the names of a scheduler's queues; an empty name stands for all jobs.

        Raises:
            KubeError: The server refused.
        """
        if scheduler == "kueue":
            path = await self._kube.kueue_path("localqueues")
        elif scheduler == "volcano":
            path = "/apis/scheduling.volcano.sh/v1beta1/queues"
        else:
            return [""]
        queue_names = []
        try:
            async for page in pages(self._kube, path, {}):
                queue_names += [str(item["metadata"]["name"]) for item in page.get("items") or ()]
        except KubeError as error:
            if error.status not in (403, 404):
                raise
            return [""]
        return queue_names

    async def close(self) -> None:
        """Stop all watches."""
        await self.watch.close()


def by_index(pods: Iterable[Pod]) -> dict[int, list[Pod]]:
    """Group pods by their index."""
    pods_by_index: dict[int, list[Pod]] = {}
    for pod in pods:
        if pod.index is not None:
            pods_by_index.setdefault(pod.index, []).append(pod)
    return pods_by_index


def _may_change(job: Found, entries: Sequence[Any]) -> bool:
    """Return whether a new request may return more although the Job does not change."""
    if not entries:
        return not job.is_final
    return any(pod.is_pending or not pod.is_settled for pod in entries)


def _whole(
    name: str, documents: Iterable[dict[str, Any]], *, is_deleted: bool = False
) -> dict[str, Found]:
    """Combine the objects of a job; return nothing if the main object is missing."""
    objects = tuple(documents)
    volcanos = [each for each in objects if volcano.is_one(each)]
    job = volcano.as_job(volcanos[0]) if volcanos else nodes.MultiNodeJob(objects).job
    return {} if job is None else {name: Found(name, job, objects, is_deleted)}


def _is_multi_node(job: Mapping[str, Any]) -> bool:
    """Return whether a Job's pods are nodes of one job."""
    template = (job.get("spec") or {}).get("template") or {}
    return names.GANG_LABEL in ((template.get("metadata") or {}).get("labels") or {})


def _of_job(job: Found) -> str:
    return f"{JOB_LABEL if job.is_ours else _OWN_JOB_NAME}={job.name}"


def _any_of(label: str, values: Iterable[str]) -> str:
    return f"{label} in ({','.join(values)})"


def _groups(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    iterator = iter(items)
    while group := list(islice(iterator, size)):
        yield group


def wanted_name(job: Mapping[str, Any]) -> str:
    """Return the requested name of a job."""
    metadata = job["metadata"]
    annotations = metadata.get("annotations") or {}
    return str(annotations.get(NAME_ANNOTATION) or metadata["name"])


def submitted_at(job: Mapping[str, Any]) -> tuple[datetime, str]:
    """Return the submission time: the server's, in seconds, then the client's."""
    metadata = job["metadata"]
    at = moment(metadata.get("creationTimestamp")) or _LONG_AGO
    return at, str((metadata.get("annotations") or {}).get(SUBMITTED_ANNOTATION) or "")


def _matches(job: Mapping[str, Any], named: str) -> bool:
    is_part = names.rank(job, 0) > 0
    return not is_part and wanted_name(job).startswith(named)


def _listed(job: dict[str, Any]) -> dict[str, Any]:
    return volcano.as_job(job) if volcano.is_one(job) else job
