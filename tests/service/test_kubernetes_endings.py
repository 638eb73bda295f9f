"""Exits of a task on Kubernetes, one for each error class.

Starts a local Kubernetes emulator, which evicts pods and withholds images.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import farcall_local
from farcall import (
    BatchExecutor,
    FarcallError,
    HostLostError,
    ImageError,
    Job,
    JobCancelledError,
    JobError,
    JobLostError,
    JobTimeoutError,
    OutOfMemoryError,
)
from farcall.engine.session import session_for
from tests.local.cluster import Cluster
from tests.support.patience import PATIENCE_S, until_async

pytestmark = pytest.mark.usefixtures("module_travels")


# --- tasks --------------------------------------------------------------------------------------


def hold(begun: str, go: str) -> str:
    """Record the start and wait."""
    with open(begun, "a") as told:  # noqa: PTH123
        told.write(f"{os.getppid()}\n")
    deadline = time.monotonic() + PATIENCE_S
    while not os.path.exists(go) and time.monotonic() < deadline:  # noqa: PTH110
        time.sleep(0.02)
    return "done"


# --- faults -------------------------------------------------------------------------------------


@dataclass
class World:
    """A cluster with one job, and methods to wait for the job."""

    aws: farcall_local.LocalAWS
    cluster: Cluster
    job: Job[Any]
    begun: Path

    @property
    def hooks(self) -> Any:
        return self.aws.kubernetes

    async def running(self, attempts: int = 1) -> None:
        await until_async(lambda: len(self.pids()) >= attempts)

    def pids(self) -> list[int]:
        """Return the PIDs of the task runner, one per attempt."""
        return (
            [int(line) for line in self.begun.read_text().split()] if self.begun.exists() else []
        )


async def followed(executor: BatchExecutor, job: Job[Any]) -> None:
    """Wait until the client watches the run's pods: a pod deleted earlier leaves no trace."""
    session = await session_for(executor.settings)
    await until_async(lambda: session.backend._lookup.watch.knows_failed(job.id))


async def nothing(world: World) -> None:
    """Do nothing: the job ends by itself."""


async def oom(world: World) -> None:
    await world.running()
    world.hooks.oom(world.job.id)


async def evicted(world: World) -> None:
    await world.running()
    world.hooks.evict(world.job.id)


async def pod_deleted(world: World) -> None:
    await world.running()
    [pod] = world.cluster.pods(world.job.id)
    # In a thread, because the client's event loop follows the job.
    words = ("delete", "pod", pod["metadata"]["name"], "--wait=false")
    await asyncio.to_thread(world.cluster.kubectl, *words)


async def job_deleted(world: World) -> None:
    await world.running()
    await asyncio.to_thread(world.cluster.kubectl, "delete", "job", world.job.id)


@dataclass
class Case:
    """One kind of failure.

    Attributes:
        error: Expected exception class.
        words: Texts that the message must contain.
        befalls: Fault to inject after the submission.
        options: Executor options.
        before: Change to the cluster before the submission.
        code: Expected exit code of the error.
    """

    error: type[BaseException]
    words: tuple[str, ...]
    befalls: Callable[[World], Any] = nothing
    options: Mapping[str, Any] = field(default_factory=dict)
    before: Callable[[Any], Any] = lambda hooks: None
    code: int | None = None


CASES = {
    "out of memory": Case(OutOfMemoryError, ("memory",), befalls=oom, code=137),
    "deadline": Case(
        JobTimeoutError, ("time_limit",), options={"time_limit": 60, "retry_attempts": 1}
    ),
    "evicted": Case(HostLostError, ("low on resource: memory", "retry_attempts"), befalls=evicted),
    "its pod deleted": Case(JobError, ("deleted",), befalls=pod_deleted),
    "its Job deleted": Case((JobLostError, JobCancelledError), ("deleted",), befalls=job_deleted),
    "an image that cannot be pulled": Case(
        ImageError,
        ("nowhere.example.com/none:1", "pull"),
        options={"image": "nowhere.example.com/none:1"},
        before=lambda hooks: hooks.withhold_image("nowhere.example.com/none:1"),
    ),
    "no node fits": Case(
        FarcallError,
        ("nodes are available",),
        options={"node_selector": {"kind": "none"}, "stuck_timeout_s": 1},
    ),
}


# --- separate cluster ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kubernetes() -> Iterator[farcall_local.LocalAWS]:
    with farcall_local.start(kubernetes=True, cpus=4) as aws:
        aws.kubernetes.configure(retry_s=0.05, refused_s=0.05, pull_s=0.05, deadline_scale=0.02)
        yield aws


@pytest.fixture
def cluster(kubernetes: farcall_local.LocalAWS, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in kubernetes.environment.items():
        monkeypatch.setenv(name, value)
    return Cluster(kubernetes.environment["KUBECONFIG"], kubernetes)


@pytest.mark.parametrize("name", CASES)
async def test_failure_raises_its_error_class(
    name: str, kubernetes: farcall_local.LocalAWS, cluster: Cluster, tmp_path: Path
) -> None:
    case = CASES[name]
    begun, go = tmp_path / "begun", tmp_path / "go"
    options = {"vcpu": 1, "memory": 1, "retry_attempts": 1, "linger_s": 0.02, **case.options}
    case.before(kubernetes.kubernetes)
    try:
        async with BatchExecutor(backend="kubernetes", **options) as executor:
            job = await executor.submit(hold, str(begun), str(go))
            await followed(executor, job)
            await case.befalls(World(kubernetes, cluster, job, begun))
            error = await asyncio.wait_for(job.exception(), PATIENCE_S)
    finally:
        go.touch()
    assert isinstance(error, case.error), repr(error)
    for word in case.words:
        assert word in str(error), str(error)
    assert job.id in str(error)
    assert "To do: " in str(error)
    if case.code is not None:
        assert error.exit_code == case.code


@pytest.mark.core
async def test_cancelled_array_task_leaves_others(
    kubernetes: farcall_local.LocalAWS, cluster: Cluster, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    options = {"vcpu": 1, "memory": 1, "retry_attempts": 3, "linger_s": 0.5}
    async with BatchExecutor(backend="kubernetes", **options) as executor:
        jobs = await asyncio.gather(
            *(executor.submit(hold, str(tmp_path / f"begun{n}"), str(go)) for n in range(3))
        )
        assert len({job.id.partition(":")[0] for job in jobs}) == 1
        await until_async(lambda: all((tmp_path / f"begun{n}").exists() for n in range(3)))
        await jobs[1].cancel("this one alone")
        error = await asyncio.wait_for(jobs[1].exception(), PATIENCE_S)
        go.touch()
        values = [await asyncio.wait_for(jobs[n].result(), PATIENCE_S) for n in (0, 2)]
    assert isinstance(error, JobCancelledError)
    assert "this one alone" in str(error)
    assert values == ["done", "done"]
    assert len((tmp_path / "begun1").read_text().split()) == 1
