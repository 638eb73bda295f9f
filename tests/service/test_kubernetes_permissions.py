"""A session with the Role of docs/kubernetes.

Starts a local Kubernetes emulator that enforces RBAC.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from farcall import BatchExecutor, Job, JobCancelledError
from farcall.model.jobs import JobStatus
from tests import emulators
from tests.docs.pages import run_installed
from tests.local.cluster import Cluster
from tests.support.patience import PATIENCE_S, until_async
from tests.support.tasks import wait_for

pytestmark = pytest.mark.usefixtures("module_travels")

ROOT = Path(__file__).parents[2]
USER = "restricted"
"""Context and user of the local Kubernetes emulator without any default permissions."""

NO_PODS = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "none"},
    "spec": {"hard": {"pods": "0"}},
}

OPTIONS = {"backend": "kubernetes", "context": USER, "vcpu": 1, "memory": 1, "linger_s": 0.02}


def _documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((ROOT / "docs" / "kubernetes" / "client.yaml").read_text()))


@pytest.fixture(scope="module")
def embedded_kubernetes():
    with emulators.start(kubernetes=True, cpus=4) as aws:
        yield aws


@pytest.fixture
def cluster(kubernetes):
    return Cluster(kubernetes.environment["KUBECONFIG"], kubernetes)


def grant(cluster: Cluster, without: tuple[str, str] | None = None) -> None:
    """Grant the user the permissions of the file, optionally except one."""
    role, binding = _documents()
    for document in (role, binding):
        document["metadata"]["namespace"] = cluster.namespace
    binding["subjects"] = [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": USER}]
    role["rules"] = [
        {**rule, "resources": [resource], "verbs": verbs}
        for rule in role["rules"]
        for resource in rule["resources"]
        if (verbs := [verb for verb in rule["verbs"] if (resource, verb) != without])
    ]
    for document in (role, binding):
        cluster.kubectl("apply", "-f", "-", answer=json.dumps(document))


# --- requests -----------------------------------------------------------------------------------


def hold(begun: str) -> None:
    Path(begun).touch()
    time.sleep(PATIENCE_S)


async def _has_reason(job: Job[Any], word: str) -> bool:
    return word in (await job.detail()).status_reason


async def session(folder: Path, cluster: Cluster) -> None:
    """Submit, map, cancel, read output, run on two nodes, delete and recover."""
    async with BatchExecutor(**OPTIONS, retry_attempts=1) as opened:
        assert await opened.task(abs)(-1) == 1
        assert await opened.task(abs).map([-1, -2, -3]) == [1, 2, 3]
        jobs = await asyncio.gather(*(opened.submit(hold, str(folder / str(n))) for n in range(2)))
        await until_async(lambda: all((folder / str(n)).exists() for n in range(2)))
        for job in jobs:
            await job.cancel()
            with pytest.raises(JobCancelledError):
                await job.result()
        cluster.ask("POST", cluster.path("resourcequotas"), NO_PODS)
        waiting = await opened.submit(abs, -1)
        await until_async(lambda: _has_reason(waiting, "quota"))
        await waiting.cancel()
        cluster.ask("DELETE", cluster.path("resourcequotas", "none"))
        for _ in range(2):  # the second job finds the first job's Service
            assert await opened.with_options(nodes=2).task(abs)(-1) == [1, 1]
        command = await opened.command("busybox:1", ["echo", "printed"])
        assert [line.text async for line in command.logs(follow=True)] == ["printed"]
        await command.delete()
        kept = await opened.submit(abs, -4)
        await until_async(lambda: kept.detail())
        async with BatchExecutor(**OPTIONS) as other:
            (run,) = await other.runs()
            found = {job.id: job for job in (await other.recover(run.name)).jobs}
            assert await found[kept.id].result() == 4


def granted() -> set[str]:
    """Return the permissions of the file, named like the emulator's request counts."""
    role = _documents()[0]
    return {
        f"{verb} {resource}"
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def commands(folder: Path) -> list[str]:
    """Run some commands; return the output of those that fail."""
    told = []
    for words in (("doctor",), ("list",)):
        done = run_installed("farcall", *words, FARCALL_CONTEXT=USER)
        if done.returncode:
            told.append(done.stdout + done.stderr)
    return told


@pytest.mark.slow
async def test_documented_role_suffices_for_session(kubernetes, cluster, tmp_path):
    emulator = kubernetes.kubernetes
    grant(cluster)
    before = emulator.requests()
    await session(tmp_path, cluster)
    assert commands(tmp_path) == []
    asked = {name for name, count in emulator.requests().items() if count > before.get(name, 0)}
    ours = {name for name in asked if "/" not in name or name.endswith("pods/log")}
    ours -= {"create resourcequotas", "delete resourcequotas"}  # the test's own
    # Every user may review access, and doctor reads a Secret only if permitted.
    assert ours - granted() == {"create selfsubjectaccessreviews", "get secrets"}
    assert granted() - ours == {"get serviceaccounts"}  # with service_account


async def test_restart_of_api_server_is_survived(kubernetes, cluster, tmp_path):
    """A starting API server denies requests, also the first request of its kind."""
    grant(cluster)
    async with BatchExecutor(**OPTIONS) as executor:
        job = await executor.submit(wait_for, tmp_path / "go")
        await until_async(lambda: _runs(job))
        kubernetes.kubernetes.restart()
        await job.cancel()
        with pytest.raises(JobCancelledError):
            await job.result()


async def _runs(job: Job[Any]) -> bool:
    return (await job.detail()).status is JobStatus.RUNNING
