"""The platforms on which the contract of `farcall.backends.base.Backend` is tested.

To add a platform, implement `Platform` here and add it to `PLATFORMS`.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import pytest

from farcall import JobDetail, JobStatus, Settings
from farcall.backends.base import JobSpec
from farcall.engine.session import Session
from farcall.engine.submitter import job_of
from farcall.model.commands import ENV_RUN, Nodes
from farcall.model.failure_reasons import STUCK
from farcall.model.pacing import Ticket
from farcall.model.workflows import Workflow
from farcall.payload.bundle import Bundle
from farcall.payload.pickling import pack_calls, pack_function
from farcall.testing import FakeCloud, HostLost, ImageFailed, fake_cloud
from farcall_local import LocalAWS
from tests.support.patience import until_async

PLACES = os.cpu_count() or 1
"""Number of jobs with one vCPU that run at once."""

ENDED = (JobStatus.SUCCEEDED, JobStatus.FAILED)

IMAGE = "an/image:1"
"""Image of commands; ignored if jobs run as processes."""

SMALL = {"vcpu": 1, "memory": 0.25}

Submit = Callable[[], Awaitable[str]]


class Jobs:
    """Jobs of a session's backend, whose tasks are calls of a function."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.backend = session.backend

    async def bundle(
        self, function: Callable[..., Any], *calls: tuple[Any, ...], settings: Settings
    ) -> tuple[Bundle, JobSpec]:
        """Upload the bundle of some calls; return it and its JobSpec."""
        packed = pack_calls([[(call, {})] for call in calls])
        tasks = ((pack_function(function), arguments) for arguments in packed)
        bundle = Bundle(
            settings, "v1/contract", "task", tasks, Workflow("contract"), most=len(calls)
        )
        store = self.session.stores.of(settings.s3_bucket_name)
        await store.put(bundle.where.bundle_key, bundle.pieces())
        return bundle, job_of(bundle, settings, self.session.aws, size=bundle.size)

    async def spec(
        self, function: Callable[..., Any], *calls: tuple[Any, ...], **options: Any
    ) -> JobSpec:
        """Upload calls for a small job with additional options; return its JobSpec."""
        settings = Settings(**{"vcpu": 1, "memory": 1, "retry_attempts": 1, **options})
        return (await self.bundle(function, *calls, settings=settings))[1]

    def command(self, *groups: Nodes, **options: Any) -> JobSpec:
        """Return the JobSpec of a small command job with additional options."""
        return JobSpec(
            name=f"contract-{uuid.uuid4().hex}",
            size=1,
            environment={ENV_RUN: "contract-20261122-101500-0a1b2c"},
            settings=Settings(**{"vcpu": 1, "memory": 1, "retry_attempts": 1, **options}),
            groups=groups,
        )

    async def submit(self, spec: JobSpec) -> str:
        """Prepare and submit a job; return its ID."""
        await self.backend.prepare(spec)
        return await self.backend.submit(spec, Ticket())

    async def start(
        self, function: Callable[..., Any], *calls: tuple[Any, ...], **options: Any
    ) -> str:
        """Submit a job that runs calls; return its ID."""
        return await self.submit(await self.spec(function, *calls, **options))

    async def describe(self, job_id: str) -> JobDetail:
        """Describe one job."""
        return (await self.backend.describe([job_id]))[job_id]

    async def until(self, job_id: str, *statuses: JobStatus) -> JobDetail:
        """Wait until a job has one of the statuses; describe it."""

        async def look() -> JobDetail | None:
            found = (await self.backend.describe([job_id])).get(job_id)
            return found if found is not None and found.status in statuses else None

        found = await until_async(look)
        assert found is not None
        return found

    async def ended(self, job_id: str) -> JobDetail:
        """Wait until a job finishes; describe it."""
        return await self.until(job_id, *ENDED)

    async def children(self, job_id: str, statuses: Collection[JobStatus]) -> list[JobDetail]:
        """List the child jobs of an array that have one of the statuses."""
        found = []
        for status in statuses:
            async for page in self.backend.list_children(job_id, status):
                found += page
        return found

    async def listed(self, **how: Any) -> list[JobDetail]:
        """List the jobs of the queue."""
        queue = Settings().queue
        return [job async for page in self.backend.list_jobs(queue, **how) for job in page]


def shell(script: str, count: int = 1, **more: Any) -> Nodes:
    """Return a group of small nodes that run a script."""
    command = ("sh", "-c", script)
    return Nodes(**{"count": count, "image": IMAGE, "command": command, **SMALL, **more})


class Platform(Protocol):
    """A platform that runs jobs and can inject failures.

    Attributes:
        reports_position: Whether the platform reports a waiting job's position in its queue.
        retries_nodes: Whether all nodes of a job are retried if the main node fails.
    """

    reports_position: bool
    retries_nodes: bool

    async def losing_its_host(self, jobs: Jobs, submit: Submit) -> str:
        """Submit a job whose first attempt loses its host; return its ID."""

    async def not_starting(self, jobs: Jobs, submit: Submit) -> str:
        """Submit a job whose first container does not start; return its ID."""


class Fake:
    """The fake cloud; failures are scripted in advance."""

    reports_position = True
    retries_nodes = True

    def __init__(self, cloud: FakeCloud) -> None:
        self._cloud = cloud

    async def losing_its_host(self, jobs: Jobs, submit: Submit) -> str:
        self._cloud.next_job(HostLost())
        return await submit()

    async def not_starting(self, jobs: Jobs, submit: Submit) -> str:
        self._cloud.next_job(ImageFailed())
        return await submit()


class EmbeddedBatch:
    """AWS Batch of the local AWS emulator, via HTTP."""

    reports_position = True
    retries_nodes = True

    def __init__(self, aws: LocalAWS) -> None:
        self._aws = aws

    async def losing_its_host(self, jobs: Jobs, submit: Submit) -> str:
        job_id = await submit()
        await jobs.until(job_id, JobStatus.RUNNING)
        self._aws.reclaim(job_id)
        return job_id

    async def not_starting(self, jobs: Jobs, submit: Submit) -> str:
        self._aws.break_starts("CannotPullContainerError: the image is not to be had")
        return await submit()


class EmbeddedKubernetes:
    """Kubernetes of the local Kubernetes emulator, via HTTPS."""

    reports_position = False
    retries_nodes = False  # only Volcano does

    def __init__(self, aws: LocalAWS) -> None:
        self._kubernetes = aws.kubernetes

    async def losing_its_host(self, jobs: Jobs, submit: Submit) -> str:
        job_id = await submit()
        await jobs.until(job_id, JobStatus.RUNNING)
        self._kubernetes.evict(job_id)
        return job_id

    async def not_starting(self, jobs: Jobs, submit: Submit) -> str:
        self._kubernetes.withhold_image(Settings().image)
        try:
            job_id = await submit()
            blocked = await until_async(lambda: self._blocked(jobs, job_id))
        finally:  # other tests use the same image
            self._kubernetes.release_image(Settings().image)
        # Kubernetes would retry forever; the engine terminates such a job, see
        # `farcall.engine.status_poller`.
        why = blocked.status_reason or blocked.container_reason
        await jobs.backend.terminate([job_id], f"{STUCK}0 s: {why}")
        return job_id

    async def _blocked(self, jobs: Jobs, job_id: str) -> JobDetail | None:
        found = (await jobs.backend.describe([job_id])).get(job_id)
        return found if found is not None and found.is_blocked else None


@contextlib.contextmanager
def _fake(_: pytest.FixtureRequest) -> Iterator[Platform]:
    with fake_cloud() as cloud:
        yield Fake(cloud)


@contextlib.contextmanager
def _embedded_batch(request: pytest.FixtureRequest) -> Iterator[Platform]:
    yield EmbeddedBatch(request.getfixturevalue("aws"))


@contextlib.contextmanager
def _embedded_kubernetes(request: pytest.FixtureRequest) -> Iterator[Platform]:
    yield EmbeddedKubernetes(request.getfixturevalue("kubernetes"))


PLATFORMS: dict[str, Callable[[pytest.FixtureRequest], AbstractContextManager[Platform]]] = {
    "fake": _fake,
    "embedded-batch": _embedded_batch,
    "embedded-kubernetes": _embedded_kubernetes,
}
"""Name to a context manager that opens a platform for this process's sessions."""
