"""Checks of a Kubernetes cluster by ``farcall doctor``.

Starts the local Kubernetes emulator, because rights and objects are read from an API server.
"""

import asyncio

import pytest

from farcall import Settings
from farcall.backends.kubernetes import doctor
from farcall.backends.kubernetes.client import Kube
from farcall.backends.kubernetes.kubeconfig import read
from farcall.model.findings import FAILED, OK, WARNING
from farcall.model.timing import Timing
from farcall.operations.doctor import examine


def run(call, context=""):
    """Run a check on the local Kubernetes emulator; return its findings."""

    async def asking():
        kube = Kube(read(context=context), "", Timing())
        try:
            return list(await call(kube))
        finally:
            await kube.close()

    return asyncio.run(asking())


def settings(**options):
    return Settings(backend="kubernetes", **options)


def test_complete_cluster_passes_all_checks(kubernetes):
    found = {each.check: each for each in asyncio.run(examine())}
    assert not [each for each in found.values() if each.verdict == FAILED]
    for check in ("version", "namespace", "rights", "quota", "resources", "S3 secret"):
        assert found[check].verdict == OK
    assert "default" in found["namespace"].found


def test_missing_permissions_are_named(kubernetes):
    found = run(lambda kube: doctor.rights(kube, settings()), "restricted")
    needed = [each.found for each in found if each.verdict == FAILED]
    assert any("create, get, list, patch jobs.batch" in text for text in needed)
    assert any("list pods " in text for text in needed)
    lost = [each.found for each in found if each.verdict == WARNING]
    assert any("pods/log" in text and "only read from the bucket" in text for text in lost)
    assert all("Role" in each.remedy for each in found)


@pytest.mark.parametrize(
    ("hard", "used", "verdict", "words"),
    [
        ({"limits.memory": "8Gi"}, {}, OK, "room"),
        ({"limits.memory": "3Gi"}, {}, FAILED, "more than the quota"),
        ({"limits.memory": "8Gi"}, {"limits.memory": "7Gi"}, WARNING, "does not fit"),
        ({"pods": "5"}, {"pods": "5"}, WARNING, "pods 5 of 5"),
        ({"requests.cpu": "1"}, {"requests.cpu": "500m"}, FAILED, "requests.cpu"),
        ({"requests.storage": "1Gi"}, {}, OK, "room"),
    ],
)
def test_quota_is_compared_with_pod(hard, used, verdict, words):
    class Answers:
        namespace = "sim"

        def path(self, resource):
            return resource

        async def request(self, method, path):
            assert (method, path) == ("GET", "resourcequotas")
            return {"items": [{"metadata": {"name": "q"}, "status": {"hard": hard, "used": used}}]}

    (found,) = asyncio.run(doctor.quota(Answers(), settings(vcpu=2, memory=4)))
    assert (found.verdict, words in found.found) == (verdict, True)


@pytest.mark.parametrize(
    ("said", "verdict"),
    [("v1.37.0", OK), ("v1.33.2-eks-1", OK), ("v1.32.9", WARNING), ("nightly", WARNING)],
)
def test_older_servers_lack_attempts_by_task(said, verdict):
    class Answers:
        async def request(self, method, path):
            return {"gitVersion": said}

    (found,) = asyncio.run(doctor.version(Answers()))
    assert found.verdict == verdict
    assert said in found.found


def test_run_deletes_its_jobs(kubernetes, commands):
    other_jobs = jobs_listed(commands)
    done = commands.run("doctor", "--run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 ok" in done.stderr
    assert "cost at most: " in done.stdout
    assert jobs_listed(commands) <= other_jobs


def jobs_listed(commands):
    """Return the IDs of the listed jobs; the cluster contains jobs of other tests."""
    done = commands.run("list")
    assert done.returncode == 0, done.stderr
    return {line.split()[0] for line in done.stdout.splitlines()[1:]}
