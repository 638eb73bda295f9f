"""Kubernetes backend: `farcall.backends.base.Backend` for one namespace."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from farcall.backends.base import Capabilities, JobSpec, Log
from farcall.backends.kubernetes import describe, kubeconfig, logs
from farcall.backends.kubernetes.client import Kube
from farcall.backends.kubernetes.create import check_submission, create, delete
from farcall.backends.kubernetes.documents import LARGEST_ARRAY, KubernetesJob
from farcall.backends.kubernetes.lookup import Found, Lookup
from farcall.backends.kubernetes.names import RUN_LABEL
from farcall.backends.kubernetes.pods import Pod
from farcall.backends.kubernetes.preflight import check
from farcall.backends.kubernetes.resubmission import OBJECTS, objects, requests
from farcall.backends.kubernetes.termination import Terminator
from farcall.config.settings import Settings
from farcall.model.errors import ServiceError, SettingsError
from farcall.model.findings import OK, Finding
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.names import KUBERNETES
from farcall.model.pacing import Meter, Ticket
from farcall.model.timing import Timing

_log = logging.getLogger("farcall")


_NAMESPACE = "default"
_MOST_FAILED = 50
"""Maximum number of failed pods that are inspected to describe an array."""


class KubernetesBackend:
    """Jobs of one namespace; see `farcall.backends.base.Backend` for the methods.

    Args:
        timing: Time limits and retries of requests.
        settings: The options that select the cluster.
    """

    name: str = KUBERNETES
    capabilities = Capabilities(
        largest_array=LARGEST_ARRAY,
        described_together=100,
        longest_log_line_bytes=logs.LONGEST_LINE_BYTES,
        log_reads_per_s=logs.READS_PER_S,
        marks_ended_children=True,
        ids_are_names=True,
    )

    def __init__(self, timing: Timing, settings: Settings) -> None:
        self._settings = settings
        self.meter = Meter()
        self._kube: Kube | None = None
        self._without: SettingsError | None = None
        try:
            connection = kubeconfig.read(settings.kubeconfig, settings.context)
        except SettingsError as error:  # a plan needs no cluster
            self._without = error
            return
        self._kube = Kube(connection, settings.namespace, timing, self.meter)

    @property
    def kube(self) -> Kube:
        """The API server.

        Raises:
            SettingsError: No server is configured.
        """
        if self._kube is None:
            assert self._without is not None  # noqa: S101  # for the type checker
            raise self._without
        return self._kube

    @property
    def namespace(self) -> str:
        """The namespace of the jobs, even without a cluster."""
        configured = self._kube.namespace if self._kube is not None else self._settings.namespace
        return configured or _NAMESPACE

    @functools.cached_property
    def _lookup(self) -> Lookup:
        return Lookup(self.kube, has_volcano=self._settings.scheduler == "volcano")

    @functools.cached_property
    def _ending(self) -> Terminator:
        return Terminator(self.kube, self._lookup)

    # --- before submission ---------------------------------------------------------------------

    async def check(self, settings: Settings) -> None:
        """Check that the namespace exists, and the objects in it that the options name."""
        await check(self.kube, settings)

    async def reach(self) -> list[Finding]:
        """Check that the API server responds."""
        version = await self.kube.request("GET", "/version")
        server = (
            f"Kubernetes {version.get('gitVersion', '(unknown version)')} at {self.kube.place}"
        )
        return [Finding("cluster", OK, f"{server}, namespace {self.kube.namespace}")]

    def examine(
        self, settings: Settings, *, answers: bool
    ) -> Mapping[str, Awaitable[Iterable[Finding]]]:
        """Return the checks of rights, namespace, quota, queue and image."""
        from farcall.backends.kubernetes import doctor  # only needed by `farcall doctor`

        return doctor.checks(self.kube, settings, answers=answers)

    async def needs_runtime(self, settings: Settings, *, offline: bool = False) -> bool:
        """Return whether tasks run in the stock image."""
        return not settings.image

    async def plan(self, job: JobSpec, *, offline: bool = False) -> dict[str, Any]:
        """Return the objects of a submission, validated by the server."""
        wanted = self._documents(job)
        if not offline:
            await check_submission(self.kube, wanted)
        return {OBJECTS: wanted}

    def _documents(self, job: JobSpec) -> list[dict[str, Any]]:
        if job.requests is not None:
            documents = objects(job)
        else:
            image = job.settings.image or job.settings.stock_image
            documents = KubernetesJob(job, image).objects()
        return [
            {**each, "metadata": {**each["metadata"], "namespace": self.namespace}}
            for each in documents
        ]

    # --- jobs ---------------------------------------------------------------------------------

    async def prepare(self, job: JobSpec) -> None:
        """Check that the options result in a valid Kubernetes job."""
        self._documents(job)

    async def submit(self, job: JobSpec, ticket: Ticket) -> str:
        """Create a job's objects; return its ID."""
        limit_s = job.settings.stuck_timeout_s
        made = await create(self.kube, self._documents(job), ticket, limit_s)
        for each in made:
            run = (each["metadata"].get("labels") or {}).get(RUN_LABEL)
            if run and each.get("apiVersion") == "batch/v1":
                self._lookup.watch.note(run, each)
        return str(made[-1]["metadata"]["name"])

    async def find(self, name: str, queue: str) -> list[str]:
        """Return the ID of the job with a name."""
        return [job.name for job in await self._lookup.list_named(name, queue)]

    async def describe(self, job_ids: Iterable[str]) -> dict[str, JobDetail]:
        """Return the details of jobs, array tasks and nodes."""
        ids = list(dict.fromkeys(job_ids))
        jobs = await self._lookup.jobs(map(_whole_of, ids))
        known = {job_id: jobs[name] for job_id in ids if (name := _whole_of(job_id)) in jobs}
        arrays = {job_id: job for job_id, job in known.items() if job.is_array}
        others = {job_id: job for job_id, job in known.items() if not job.is_array}
        pods = await self._lookup.pods({job.name: job for job in others.values()}.values())
        details: dict[str, JobDetail | None] = {}
        gangs = {job.name: job for job in others.values() if len(job.objects) > 1}
        await asyncio.gather(*map(self._ending.end_left, gangs.values()))
        for job_id, job in others.items():
            details[job_id] = await self._plain(job, job_id, pods[job.name])
        for job_id, job in arrays.items():
            if job_id == job.name:
                details[job_id] = await self._array(job)
        details |= await self._children(arrays)
        return {job_id: each for job_id in ids if (each := details.get(job_id)) is not None}

    async def _array(self, job: Found) -> JobDetail:
        waiting = await self._lookup.waiting(job)
        failed = [pod for pods in (self._lookup.failed(job) or {}).values() for pod in pods]
        pods = [*failed[:_MOST_FAILED], *waiting]
        return job.description(await self._lookup.events(job, pods)).whole(pods)

    async def _plain(self, job: Found, job_id: str, pods: Sequence[Pod]) -> JobDetail | None:
        described = job.description(await self._lookup.events(job, pods))
        if job_id == job.name:
            return described.whole(pods)
        rank = _number(job_id, "#")
        return described.node(rank, pods) if rank is not None else None

    async def _children(self, jobs: Mapping[str, Found]) -> dict[str, JobDetail | None]:
        """Describe the array tasks among the given jobs."""
        wanted: dict[str, list[int]] = {}
        for job_id, job in jobs.items():
            index = _number(job_id, ":")
            if index is not None and index < job.size:
                wanted.setdefault(job.name, []).append(index)
        details: dict[str, JobDetail | None] = {}
        for name, indexes in wanted.items():
            job = jobs[f"{name}:{indexes[0]}"]
            pods = await self._lookup.children(job, indexes)
            described = job.description()
            for index in indexes:
                details[f"{name}:{index}"] = described.task(index, pods.get(index, ()))
        return details

    async def requests_of(self, job_id: str) -> dict[str, Any] | None:
        """Return an existing job's documents, without the server's additions."""
        job = (await self._lookup.jobs([job_id])).get(job_id)
        if job is None:
            return None
        last = sorted(job.objects, key=lambda each: each["metadata"]["name"] == job.name)
        return requests(last)

    async def options_of(self, job_id: str) -> dict[str, Any]:
        """Return the options for resubmitting a job."""
        job = (await self._lookup.jobs([job_id])).get(job_id)
        return describe.options(job.job) if job is not None else {}

    async def terminate(self, job_ids: Sequence[str], reason: str) -> dict[str, ServiceError]:
        """Terminate jobs; return the errors of those that could not be terminated."""
        return await self._ending.end(job_ids, reason)

    async def cancel_waiting(self, job_ids: Sequence[str], reason: str) -> dict[str, ServiceError]:
        """Cancel jobs none of whose tasks has started."""
        try:
            details = await self.describe(job_ids)
        except ServiceError as error:
            return dict.fromkeys(job_ids, error)
        waiting = [job_id for job_id, detail in details.items() if detail.is_waiting]
        return await self._ending.end(waiting, reason, if_unchanged=True)

    async def forget(self, detail: JobDetail) -> None:
        """Delete a job's objects, with their pods."""
        name = _whole_of(detail.job_id)
        job = (await self._lookup.jobs([name])).get(name)
        for each in job.objects if job is not None else ():
            await delete(self.kube, each)

    def unknown(self, job_id: str) -> str:
        """Return the error text for a job that does not exist."""
        return (
            f"job {job_id} does not exist in namespace {self.namespace} of {self.kube.place}. "
            "Run `farcall list` to list the existing jobs: jobs are deleted some time after "
            "their end (ttl), and jobs elsewhere require the options namespace and context."
        )

    # --- lists --------------------------------------------------------------------------------

    async def queues(self) -> list[str]:
        """Return the names of the scheduler's queues; an empty name if it has none."""
        return await self._lookup.queues(self._settings.scheduler)

    async def list_named(self, name: str, queue: str) -> list[JobDetail]:
        """Return the job with a name."""
        jobs = await self._lookup.list_named(name, queue)
        return list((await self.describe(job.name for job in jobs)).values())

    def list_jobs(
        self,
        queue: str,
        since: datetime | None = None,
        *,
        named: str = "",
        foreign: bool = False,
    ) -> AsyncGenerator[list[JobDetail], None]:
        """Yield the jobs of the namespace, in pages of up to 100."""
        return self._lookup.list_jobs(queue, since, named=named, foreign=foreign)

    def list_children(self, job_id: str, status: JobStatus) -> AsyncIterator[list[JobDetail]]:
        """Yield the tasks of an array that have a status, in pages of up to 100."""
        return self._lookup.list_children(job_id, status)

    async def positions(self, queue: str) -> dict[str, int]:
        """Return no positions: the cluster's scheduler does not report an order."""
        return {}

    # --- links and logs ------------------------------------------------------------------------

    def links(self, detail: JobDetail) -> dict[str, str]:
        """Return no links: clusters have no common web console."""
        return {}

    def log(self, group: str, stream: str, since: datetime | None = None) -> Log:
        """Return the log of a pod."""
        return logs.PodLog(self.kube, stream, since)

    async def close(self) -> None:
        """Stop all watches and close the connections."""
        if self._kube is not None:
            await self._lookup.close()
            await self._kube.close()


def _whole_of(job_id: str) -> str:
    """Return the ID of the job that contains an array task or a node."""
    return job_id.partition(":")[0].partition("#")[0]


def _number(job_id: str, mark: str) -> int | None:
    text = job_id.partition(mark)[2]
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None
