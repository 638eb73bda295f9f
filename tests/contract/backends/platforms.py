"""The platforms on which the contract of `farcall.backends.base.Backend` is tried.

Another one is a class here that does what `Platform` says, and a line in `PLATFORMS`.
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
from farcall.aws.paced_client import Ticket
from farcall.backends.base import JobSpec
from farcall.engine.session import Session
from farcall.engine.submitter import job_of
from farcall.model.commands import ENV_RUN, Nodes
from farcall.model.failure_reasons import STUCK
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
"""Of commands: nothing of it is looked at where jobs are processes."""

SMALL = {"vcpu": 1, "memory": 0.25}

Submit = Callable[[], Awaitable[str]]


class Jobs:
    """Jobs of one session's backend, whose tasks are calls of a function.

    Attributes:
        session: The session.
        backend: Its backend.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.backend = session.backend

    async def bundle(
        self, function: Callable[..., Any], *calls: tuple[Any, ...], settings: Settings
    ) -> tuple[Bundle, JobSpec]:
        """Put calls into the bucket, and say what job is to make them."""
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
        """Do the same with a small job's options and others."""
        settings = Settings(**{"vcpu": 1, "memory": 1, "retry_attempts": 1, **options})
        return (await self.bundle(function, *calls, settings=settings))[1]

    def command(self, *groups: Nodes, **options: Any) -> JobSpec:
        """Return a job of commands, with small options and others."""
        return JobSpec(
            name=f"contract-{uuid.uuid4().hex}",
            size=1,
            environment={ENV_RUN: "contract-20261122-101500-0a1b2c"},
            settings=Settings(**{"vcpu": 1, "memory": 1, "retry_attempts": 1, **options}),
            groups=groups,
        )

    async def submit(self, spec: JobSpec) -> str:
        """Submit a job as it is done always."""
        await self.backend.prepare(spec)
        return await self.backend.submit(spec, Ticket())

    async def start(
        self, function: Callable[..., Any], *calls: tuple[Any, ...], **options: Any
    ) -> str:
        """Submit a job that makes calls."""
        return await self.submit(await self.spec(function, *calls, **options))

    async def describe(self, job_id: str) -> JobDetail:
        """Return what is known of one job."""
        return (await self.backend.describe([job_id]))[job_id]

    async def until(self, job_id: str, *statuses: JobStatus) -> JobDetail:
        """Wait until a job has one of some statuses."""

        async def look() -> JobDetail | None:
            found = (await self.backend.describe([job_id])).get(job_id)
            return found if found is not None and found.status in statuses else None

        found = await until_async(look)
        assert found is not None
        return found

    async def ended(self, job_id: str) -> JobDetail:
        """Wait for a job's end."""
        return await self.until(job_id, *ENDED)

    async def children(self, job_id: str, statuses: Collection[JobStatus]) -> list[JobDetail]:
        """Return the children of an array that are listed in some statuses."""
        found = []
        for status in statuses:
            async for page in self.backend.list_children(job_id, status):
                found += page
        return found

    async def listed(self, **how: Any) -> list[JobDetail]:
        """Return the jobs of the queue."""
        queue = Settings().queue
        return [job async for page in self.backend.list_jobs(queue, **how) for job in page]


def shell(script: str, count: int = 1, **more: Any) -> Nodes:
    """Return small nodes that run a script."""
    command = ("sh", "-c", script)
    return Nodes(**{"count": count, "image": IMAGE, "command": command, **SMALL, **more})


class Platform(Protocol):
    """Where jobs run, and what can be made to go wrong there.

    Attributes:
        tells_places: Whether a job that waits has a place in its queue that is told.
        image_option: The option that names the image of tasks.
        retries_nodes: Whether all nodes of a job run again where their main node has failed.
    """

    tells_places: bool
    image_option: str
    retries_nodes: bool

    async def losing_its_host(self, jobs: Jobs, submit: Submit) -> str:
        """Submit a job that loses the machine under its first attempt; return its ID."""

    async def not_starting(self, jobs: Jobs, submit: Submit) -> str:
        """Submit a job whose first container does not start; return its ID."""


class Fake:
    """The fake cloud; what goes wrong is scripted before."""

    tells_places = True
    image_option = "image"
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
    """AWS Batch as the local AWS emulator has it, by HTTP."""

    tells_places = True
    image_option = "image"
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
    """Kubernetes as the embedded one has it, by HTTPS."""

    tells_places = False
    image_option = "image"
    retries_nodes = False  # Volcano alone does

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
        finally:  # other tests' jobs have it, too
            self._kubernetes.withhold_image(Settings().image, heals_after=0)
        # What Kubernetes would try forever the engine ends; see `farcall.engine.status_poller`.
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
"""By name, what opens a platform, and lets this process's sessions find it."""
