"""A session with the Role of docs/kubernetes.

Starts a local Kubernetes emulator that enforces RBAC.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import farcall.local
from farcall import BatchExecutor, JobCancelledError, JobError
from tests.docs.pages import run_installed
from tests.local.cluster import Cluster
from tests.support.patience import PATIENCE_S, until_async

pytestmark = pytest.mark.usefixtures("module_travels")

ROOT = Path(__file__).parents[2]
USER = "restricted"
"""Context, and user, of the embedded Kubernetes that has no rights but those it is given."""

OPTIONS = {"backend": "kubernetes", "context": USER, "vcpu": 1, "memory": 1, "linger_s": 0.02}


def _documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((ROOT / "docs" / "kubernetes" / "client.yaml").read_text()))


@pytest.fixture(scope="module")
def own() -> Iterator[farcall.local.LocalAWS]:
    with farcall.local.start(kubernetes=True, cpus=4) as aws:
        yield aws


@pytest.fixture
def cluster(own: farcall.local.LocalAWS, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    for name, value in own.environment.items():
        monkeypatch.setenv(name, value)
    return Cluster(own.environment["KUBECONFIG"], own)


def grant(cluster: Cluster, without: tuple[str, str] | None = None) -> None:
    """Give the user the rights of the file, but for one."""
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


# --- what somebody does -------------------------------------------------------------------------


def hold(begun: str) -> None:
    Path(begun).touch()
    time.sleep(PATIENCE_S)


def vanish() -> None:
    print("last words", flush=True)
    os.kill(os.getppid(), signal.SIGKILL)


async def session(folder: Path) -> None:
    """Submit, map, cancel a task and a whole array, and read what a dead container has said."""
    async with BatchExecutor(**OPTIONS, retry_attempts=1) as opened:
        assert await opened.task(abs)(-1) == 1
        assert await opened.task(abs).map([-1, -2, -3]) == [1, 2, 3]
        jobs = await asyncio.gather(*(opened.submit(hold, str(folder / str(n))) for n in range(2)))
        await until_async(lambda: all((folder / str(n)).exists() for n in range(2)))
        for job in jobs:
            await job.cancel()
            with pytest.raises(JobCancelledError):
                await job.result()
        dead = await opened.submit(vanish)
        with pytest.raises(JobError) as caught:
            await dead.result()
        assert "last words" in str(caught.value)
        waiting = await opened.with_options(node_selector={"kind": "none"}).submit(abs, -1)
        await until_async(lambda: waiting.detail())
        await waiting.cancel()
        assert await opened.with_options(nodes=2).task(abs)(-1) == [1, 1]


def commands(folder: Path) -> list[str]:
    """Run the commands, and return what they complain of."""
    told = []
    for words in (("doctor",), ("list",)):
        done = run_installed("farcall", *words, FARCALL_CONTEXT=USER)
        if done.returncode:
            told.append(done.stdout + done.stderr)
    return told


async def test_a_whole_session_runs_on_the_documented_role(
    cluster: Cluster, tmp_path: Path
) -> None:
    grant(cluster)
    await session(tmp_path)
    assert commands(tmp_path) == []


def test_without_any_right_one_is_told_which(cluster: Cluster) -> None:
    cluster.kubectl("delete", "rolebindings", "--all")
    done = run_installed("farcall", "doctor", FARCALL_CONTEXT=USER)
    assert done.returncode != 0
    assert "jobs" in done.stdout + done.stderr
