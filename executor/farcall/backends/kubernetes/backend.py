"""Kubernetes backend: `farcall.backends.base.Backend` by the API of one cluster's namespace."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from farcall.aws.access import Access
from farcall.aws.findings import OK, Finding
from farcall.aws.paced_client import Meter, Ticket
from farcall.backends.base import Capabilities, JobSpec, Log, LogEvent
from farcall.backends.kubernetes import (
    describe,
    documents,
    given,
    kubeconfig,
    logs,
    nodes,
    preflight,
    submission,
)
from farcall.backends.kubernetes.client import Kube
from farcall.backends.kubernetes.ending import Ending
from farcall.backends.kubernetes.listing import Listing
from farcall.backends.kubernetes.lookup import Found, Lookup
from farcall.backends.kubernetes.names import RUN_LABEL
from farcall.backends.kubernetes.pod_states import Pod
from farcall.model.errors import ServiceError, SettingsError
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.platforms import KUBERNETES
from farcall.model.settings import Settings

_NAMESPACE = "default"
_MOST_FAILED = 50
"""Of an array's pods that failed so many are looked at for what is said of the whole."""


class KubernetesBackend:
    """Jobs of one namespace; see `farcall.backends.base.Backend` for the methods.

    Args:
        access: The open clients, for the timing.
        settings: The options that say where the cluster is.
    """

    name: str = KUBERNETES
    capabilities = Capabilities(
        largest_array=documents.LARGEST_ARRAY,
        described_together=100,
        longest_log_line_bytes=logs.LONGEST_LINE_BYTES,
        logs_read_together=logs.READ_TOGETHER,
        marks_ended_children=True,
        ids_are_names=True,
    )

    def __init__(self, access: Access, settings: Settings) -> None:
        self._settings = settings
        self.meter = Meter()
        self._kube: Kube | None = None
        self._without: SettingsError | None = None
        try:
            connection = kubeconfig.read(settings.kubeconfig, settings.context)
        except SettingsError as error:  # what needs no cluster, a plan for one, goes on
            self._without = error
            return
        self._kube = Kube(connection, settings.namespace, access.timing, self.meter)

    @property
    def kube(self) -> Kube:
        """The API server.

        Raises:
            SettingsError: None is known.
        """
        if self._kube is None:
            assert self._without is not None  # noqa: S101  # says so to the type checker
            raise self._without
        return self._kube

    @property
    def namespace(self) -> str:
        """Where jobs are, or would be."""
        found = self._kube.namespace if self._kube is not None else self._settings.namespace
        return found or _NAMESPACE

    @functools.cached_property
    def _lookup(self) -> Lookup:
        return Lookup(self.kube, has_volcano=self._settings.scheduler == "volcano")

    @functools.cached_property
    def _ending(self) -> Ending:
        return Ending(self.kube, self._lookup)

    @functools.cached_property
    def _listing(self) -> Listing:
        return Listing(self.kube, self._lookup)

    @functools.cached_property
    def _logs(self) -> logs.PodLogs:
        return logs.PodLogs(self.kube)

    # --- before a job is paid for -------------------------------------------------------------

    async def check(self, settings: Settings) -> None:
        """See that the namespace, and what the options name in it, are there."""
        await preflight.check(self.kube, settings)

    async def reach(self) -> list[Finding]:
        """See that the API server answers."""
        version = await self.kube.request("GET", "/version")
        found = f"Kubernetes {version.get('gitVersion', 'of some version')} at {self.kube.place}"
        return [Finding("cluster", OK, f"{found}, namespace {self.kube.namespace}")]

    def examine(
        self, settings: Settings, *, answers: bool
    ) -> Mapping[str, Awaitable[Iterable[Finding]]]:
        """Return the checks of rights, namespace, quota, queue and image."""
        from farcall.backends.kubernetes import doctor  # for the command of its name alone

        return doctor.checks(self.kube, settings, answers=answers)

    async def needs_runtime(self, settings: Settings, *, offline: bool = False) -> bool:
        """Tell whether tasks run in the stock image."""
        return not settings.image

    async def plan(self, job: JobSpec, *, offline: bool = False) -> dict[str, Any]:
        """Return the objects that would be made, of which the server has looked at each."""
        wanted = self._documents(job)
        if not offline:
            await submission.check(self.kube, wanted)
        return {given.OBJECTS: wanted}

    def _documents(self, job: JobSpec) -> list[dict[str, Any]]:
        image = job.settings.image or job.settings.stock_image
        if job.requests is not None:
            found = given.objects(job)
        elif nodes.is_several(job):
            found = nodes.objects(job, image)
        else:
            found = [documents.job(job, image)]
        return [
            {**each, "metadata": {**each["metadata"], "namespace": self.namespace}}
            for each in found
        ]

    # --- jobs ---------------------------------------------------------------------------------

    async def prepare(self, job: JobSpec) -> None:
        """See that the options make a job that Kubernetes takes."""
        self._documents(job)

    async def submit(self, job: JobSpec, ticket: Ticket) -> str:
        """Create a job's objects, and return its ID."""
        made = await submission.create(self.kube, self._documents(job), ticket)
        for each in made:
            run = (each["metadata"].get("labels") or {}).get(RUN_LABEL)
            if run and each.get("apiVersion") == "batch/v1":
                self._lookup.watch.note(run, each)
        return str(made[-1]["metadata"]["name"])

    async def find(self, name: str, queue: str) -> list[str]:
        """Return the ID of the job of a name."""
        return [job.name for job in await self._listing.named(name, queue)]

    async def describe(self, job_ids: Iterable[str]) -> dict[str, JobDetail]:
        """Return what is known of jobs, of arrays' tasks, and of nodes."""
        ids = list(dict.fromkeys(job_ids))
        jobs = await self._lookup.jobs(map(_whole_of, ids))
        known = {job_id: jobs[name] for job_id in ids if (name := _whole_of(job_id)) in jobs}
        arrays = {job_id: job for job_id, job in known.items() if job.is_array}
        others = {job_id: job for job_id, job in known.items() if not job.is_array}
        pods = await self._lookup.pods({job.name: job for job in others.values()}.values())
        found: dict[str, JobDetail | None] = {}
        gangs = {job.name: job for job in others.values() if len(job.objects) > 1}
        await asyncio.gather(*map(self._ending.end_left, gangs.values()))
        for job_id, job in others.items():
            found[job_id] = await self._plain(job, job_id, pods[job.name])
        for job_id, job in arrays.items():
            if job_id == job.name:
                found[job_id] = await self._array(job)
        found |= await self._children(arrays)
        return {job_id: each for job_id in ids if (each := found.get(job_id)) is not None}

    async def _array(self, job: Found) -> JobDetail:
        waiting = await self._lookup.waiting(job)
        failed = [pod for pods in (self._lookup.failed(job) or {}).values() for pod in pods]
        pods = [*failed[:_MOST_FAILED], *waiting]
        events = await self._lookup.events(job, pods)
        return describe.detail(job.job, pods, events, is_deleted=job.is_deleted)

    async def _plain(self, job: Found, job_id: str, pods: Sequence[Pod]) -> JobDetail | None:
        events = await self._lookup.events(job, pods)
        if job_id == job.name:
            return describe.detail(
                job.job, pods, events, is_deleted=job.is_deleted, parts=job.parts
            )
        rank = _number(job_id, "#")
        if rank is None:
            return None
        return describe.node(job.job, rank, pods, events, parts=job.parts)

    async def _children(self, jobs: Mapping[str, Found]) -> dict[str, JobDetail | None]:
        """Describe the tasks of arrays that are among the jobs named."""
        wanted: dict[str, list[int]] = {}
        for job_id, job in jobs.items():
            index = _number(job_id, ":")
            if index is not None and index < job.size:
                wanted.setdefault(job.name, []).append(index)
        found: dict[str, JobDetail | None] = {}
        for name, indexes in wanted.items():
            job = jobs[f"{name}:{indexes[0]}"]
            pods = await self._lookup.children(job, indexes)
            for index in indexes:
                own = pods.get(index, ())
                child = describe.child(job.job, index, own, is_deleted=job.is_deleted)
                found[f"{name}:{index}"] = child
        return found

    async def requests_of(self, job_id: str) -> dict[str, Any] | None:
        """Return the documents of a job that there is, without what the server adds."""
        job = (await self._lookup.jobs([job_id])).get(job_id)
        if job is None:
            return None
        last = sorted(job.objects, key=lambda each: each["metadata"]["name"] == job.name)
        return given.requests(last)

    async def options_of(self, job_id: str) -> dict[str, Any]:
        """Return the options that a job is submitted anew with."""
        job = (await self._lookup.jobs([job_id])).get(job_id)
        return describe.options(job.job) if job is not None else {}

    async def terminate(self, job_ids: Sequence[str], reason: str) -> dict[str, ServiceError]:
        """End jobs; return those that could not be ended, with why."""
        return await self._ending.end(job_ids, reason)

    async def forget(self, detail: JobDetail) -> None:
        """Delete a job's objects, with their pods."""
        name = _whole_of(detail.job_id)
        job = (await self._lookup.jobs([name])).get(name)
        for each in job.objects if job is not None else ():
            await submission.delete(self.kube, each)

    def note_ended(self, job_ids: Iterable[str], reason: str) -> None:
        """Do nothing: jobs tell by themselves why they were ended."""

    def unknown(self, job_id: str) -> str:
        """Say that there is no such job."""
        return (
            f"no job {job_id} is in namespace {self.namespace} of {self.kube.place}; "
            "`farcall list` shows those there are: jobs are deleted some time after their end "
            "(ttl), and those elsewhere are found by the options namespace and context"
        )

    # --- lists --------------------------------------------------------------------------------

    async def queues(self) -> list[str]:
        """Return the names of the scheduler's queues; an empty one where it has none."""
        return await self._listing.queues(self._settings.scheduler)

    async def list_named(self, name: str, queue: str) -> list[JobDetail]:
        """Return the job of one name."""
        found = await self._listing.named(name, queue)
        return list((await self.describe(job.name for job in found)).values())

    async def list_jobs(
        self,
        queue: str,
        since: datetime | None = None,
        *,
        named: str = "",
        foreign: bool = False,
    ) -> AsyncGenerator[list[JobDetail], None]:
        """Yield the jobs of the namespace, in pages of up to 100."""
        listed = self._listing.jobs(queue, since, named=named, foreign=foreign)
        async with contextlib.aclosing(listed):
            async for page in listed:
                yield page

    def list_children(self, job_id: str, status: JobStatus) -> AsyncIterator[list[JobDetail]]:
        """Yield the tasks of an array that have a status, in pages of up to 100."""
        return self._listing.children(job_id, status)

    async def position(self, detail: JobDetail) -> int | None:
        """Return None: the cluster's scheduler has no order that it tells."""
        return None

    # --- beside -------------------------------------------------------------------------------

    def links(self, detail: JobDetail) -> dict[str, str]:
        """Return none: a cluster has no pages of its own that all have."""
        return {}

    def log(self, detail: JobDetail, stream: str) -> Log:
        """Return the log of a pod."""
        return logs.PodLog(self.kube, stream)

    def log_events(
        self,
        group: str,
        streams: Sequence[str],
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> AsyncGenerator[list[LogEvent], None]:
        """Yield the lines of several pods' logs."""
        return self._logs.events(streams, since, until)

    async def close(self) -> None:
        """Follow no run any more, and close the connections."""
        if self._kube is not None:
            await self._logs.close()
            await self._lookup.close()
            await self._kube.close()


def _whole_of(job_id: str) -> str:
    """Return the job that a task of an array, or a node, belongs to."""
    return job_id.partition(":")[0].partition("#")[0]


def _number(job_id: str, mark: str) -> int | None:
    text = job_id.partition(mark)[2]
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None
