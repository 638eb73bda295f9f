"""Exits of a task on Kubernetes.

Starts a local Kubernetes emulator, which kills containers and enforces time limits.
"""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from farcall import (
    BatchExecutor,
    FarcallError,
    JobCancelledError,
    JobTimeoutError,
    OutOfMemoryError,
)
from farcall.engine.session import session_for
from tests import emulators
from tests.support.patience import PATIENCE_S, until_async

pytestmark = pytest.mark.usefixtures("module_travels")


def hold(begun: str, go: str) -> str:
    """Record the start and wait."""
    with open(begun, "a") as told:  # noqa: PTH123
        told.write(f"{os.getppid()}\n")
    deadline = time.monotonic() + PATIENCE_S
    while not os.path.exists(go) and time.monotonic() < deadline:  # noqa: PTH110
        time.sleep(0.02)
    return "done"


SIDECAR = {"name": "mesh", "image": "mesh:1", "restartPolicy": "Always"}
"""A native sidecar, as service meshes inject it; it exits with 143 after the task."""


@pytest.fixture(scope="module")
def embedded_kubernetes():
    with emulators.start(kubernetes=True, cpus=4) as aws:
        aws.kubernetes.configure(refused_s=0.05, deadline_scale=0.02)
        yield aws


@pytest.mark.parametrize(
    ("error", "words", "options"),
    [
        (
            OutOfMemoryError,
            "memory",
            {"pod_overlay": {"spec": {"initContainers": [SIDECAR]}}},
        ),
        (JobTimeoutError, "time_limit", {"time_limit": 60}),
        (
            FarcallError,
            "nodes are available",
            {"node_selector": {"kind": "none"}, "stuck_timeout_s": 1},
        ),
    ],
)
async def test_failure_raises_its_error_class(error, words, options, kubernetes, tmp_path):
    begun, go = tmp_path / "begun", tmp_path / "go"
    options = {"vcpu": 1, "memory": 1, "retry_attempts": 1, "linger_s": 0.02, **options}
    try:
        async with BatchExecutor(backend="kubernetes", **options) as executor:
            job = await executor.submit(hold, str(begun), str(go))
            if error is OutOfMemoryError:
                await until_async(begun.exists)
                kubernetes.kubernetes.oom(job.id)
            found = await asyncio.wait_for(job.exception(), PATIENCE_S)
    finally:
        go.touch()
    assert isinstance(found, error), repr(found)
    for word in (words, job.id, "To do: "):
        assert word in str(found)
    if error is OutOfMemoryError:
        assert found.exit_code == 137


async def test_task_out_of_memory_gets_more(kubernetes, tmp_path):
    begun, go = tmp_path / "begun", tmp_path / "go"
    options = {"vcpu": 1, "memory": [1, 2], "retry_attempts": 1, "linger_s": 0.02}
    async with BatchExecutor(backend="kubernetes", **options) as executor:
        job = await executor.submit(hold, str(begun), str(go))
        first = job.id
        await until_async(begun.exists)
        kubernetes.kubernetes.oom(first)
        await until_async(lambda: job.id != first)
        go.touch()
        assert await asyncio.wait_for(job.result(), PATIENCE_S) == "done"
        assert (await job.detail()).memory_mib == 2048


async def test_another_process_reports_why_a_deleted_pod_failed(kubernetes, tmp_path, commands):
    begun, go = tmp_path / "begun", tmp_path / "go"
    options = {"vcpu": 1, "memory": 1, "retry_attempts": 1, "linger_s": 0.02}
    async with BatchExecutor(backend="kubernetes", **options) as executor:
        job = await executor.submit(hold, str(begun), str(go))
        await until_async(begun.exists)
        kubernetes.kubernetes.oom(job.id)
        assert isinstance(await asyncio.wait_for(job.exception(), PATIENCE_S), OutOfMemoryError)
        kube = (await session_for(executor.settings)).backend.kube
        pod = (await job.detail()).log_stream
        await kube.request("DELETE", kube.path("pods", pod))
        path = kube.path("jobs", job.id, group="batch")

        async def is_recorded():
            return "farcall/deleted-pods" in str(await kube.request("GET", path))

        await until_async(is_recorded)
    described = commands.run("describe", job.id)
    assert "the container ran out of memory" in described.stdout, described


@pytest.mark.core
async def test_cancelled_array_task_leaves_others(kubernetes, tmp_path):
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
