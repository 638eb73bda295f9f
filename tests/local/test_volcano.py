"""Volcano jobs on the embedded Kubernetes: by its API, and as processes."""

from __future__ import annotations

import pytest

from farcall import Settings
from farcall.backends.base import JobSpec
from farcall.backends.kubernetes import nodes, volcano
from farcall.backends.kubernetes.client import MERGE_PATCH, Kube
from farcall.backends.kubernetes.logs import PodLog
from farcall.backends.kubernetes.refusals import KubeError
from farcall.model.commands import ENV_RUN, Nodes
from farcall.testing import Timing
from tests.support.patience import until_async

BATCH = {"group": "batch.volcano.sh", "version": "v1alpha1"}
BUS = {"group": "bus.volcano.sh", "version": "v1alpha1"}
WAIT = "trap 'exit 143' TERM; echo ready; while :; do sleep 0.05; done"


class Volcano:
    """The embedded cluster, asked by farcall's own client."""

    def __init__(self, kube):
        self._kube = kube

    async def make(self, document, **params):
        group, _, version = document["apiVersion"].rpartition("/")
        plural = {"Service": "services", "Command": "commands"}.get(document["kind"], "jobs")
        path = self._kube.path(plural, group=group, version=version)
        return await self._kube.request("POST", path, body=document, params=params)

    async def job(self, name):
        return await self._kube.request("GET", self._kube.path("jobs", name, **BATCH))

    async def phase(self, name):
        job = await self.job(name)
        return job.get("status", {}).get("state", {}).get("phase")

    async def until(self, name, *phases):
        async def has_come():
            return await self.phase(name) in phases

        await until_async(has_come)
        return await self.job(name)

    async def pods(self, name):
        params = {"labelSelector": f"farcall/job={name}"}
        found = await self._kube.request("GET", self._kube.path("pods"), params=params)
        return found["items"]

    async def output(self, pod):
        log = PodLog(self._kube, pod)
        return [line.text for line in await log.last(100)]

    async def written(self, pod, text):
        async def is_there():
            return text in await self.output(pod)

        await until_async(is_there)

    async def patch_status(self, name, status):
        path = self._kube.path("jobs", f"{name}/status", **BATCH)
        body = {"status": status}
        return await self._kube.request("PATCH", path, body=body, content_type=MERGE_PATCH)

    async def start(self, *groups, name, **options):
        settings = Settings(backend="kubernetes", vcpu=0.1, memory=0.1, **options)
        spec = JobSpec(name, 1, {ENV_RUN: "ann-20261123T210000Z-a1b2c3"}, settings, groups)
        for document in nodes.objects(spec):
            try:
                await self.make(document, fieldValidation="Strict")
            except KubeError as error:  # another job's nodes have made the Service
                if error.code != "AlreadyExists" or document["kind"] != "Service":
                    raise
        return name


@pytest.fixture
async def cluster(kubernetes):
    kube = await Kube.open(path=kubernetes.environment["KUBECONFIG"], timing=Timing.fast())
    yield Volcano(kube)
    await kube.close()


def shell(text, count=1):
    return Nodes(count, "busybox:1", ["sh", "-c", text])


TOLD = "echo $FARCALL_NODE_INDEX of $FARCALL_NODE_COUNT at $FARCALL_MAIN_ADDRESS"


async def test_nodes_of_several_groups_are_told_who_they_are_and_end_with_the_main_one(cluster):
    name = await cluster.start(
        shell(f"{TOLD}; sleep 1"),
        shell(f"{TOLD}; {WAIT}", 2),
        name="told-1",
        scheduler="volcano",
        retry_attempts=1,
    )
    job = await cluster.until(name, "Completed")
    assert job["status"]["succeeded"] == 1
    assert await cluster.output("told-1-n0-0") == ["0 of 3 at 127.0.0.1"]
    assert [pod["metadata"]["name"] for pod in await cluster.pods(name)] == ["told-1-n0-0"]


async def test_one_failure_is_followed_by_another_attempt_of_all(cluster, tmp_path):
    mark = tmp_path / "second"
    fails = f"if [ -e {mark} ]; then echo again; else touch {mark}; exit 3; fi"
    name = await cluster.start(
        shell(f"{WAIT} & while [ ! -e {mark}.go ]; do sleep 0.05; done; kill $!"),
        shell(f"{fails}; touch {mark}.go"),
        name="again-1",
        scheduler="volcano",
        retry_attempts=2,
        retry_on="failure",
    )
    job = await cluster.until(name, "Completed")
    assert job["status"]["retryCount"] == 1


async def test_with_one_attempt_the_failed_pod_stays_with_its_log(cluster):
    name = await cluster.start(
        shell(WAIT),
        shell("echo no; exit 3"),
        name="once-1",
        scheduler="volcano",
        retry_attempts=1,
    )
    await cluster.until(name, "Terminated")
    (pod,) = await cluster.pods(name)
    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
    assert await cluster.output(pod["metadata"]["name"]) == ["no"]


async def test_a_command_ends_it_and_what_was_asked_for_stays(cluster):
    name = await cluster.start(
        shell(WAIT), shell(WAIT), name="ended-1", scheduler="volcano", retry_attempts=1
    )
    await cluster.written("ended-1-n1-0", "ready")
    await cluster.make(volcano.command(await cluster.job(name)))
    job = await cluster.until(name, "Aborted")
    assert len(job["spec"]["tasks"]) == 2
    assert volcano.as_job(job)["status"]["conditions"][0]["type"] == "Failed"


async def test_a_gang_of_a_plain_job_starts_together_on_volcano(cluster, kubernetes):
    """Three nodes of a tenth of a processor, by the annotation of their Job."""
    name = await cluster.start(
        shell("echo $FARCALL_NODE_INDEX", 3),
        name="plain-1",
        scheduler="volcano",
        retry_attempts=1,
    )

    async def have_ended():
        pods = await cluster.pods(name)
        return len(pods) == 3 and all(pod["status"]["phase"] == "Succeeded" for pod in pods)

    await until_async(have_ended)
    groups = {
        pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"]
        for pod in await cluster.pods(name)
    }
    assert len(groups) == 1


async def test_the_nodes_of_one_group_reach_the_main_one_without_volcano(cluster):
    name = await cluster.start(shell(TOLD, 2), name="both-1", retry_attempts=1)

    async def have_ended():
        pods = await cluster.pods(name)
        return len(pods) == 2 and all(pod["status"].get("phase") == "Succeeded" for pod in pods)

    await until_async(have_ended)
    outputs = [await cluster.output(pod["metadata"]["name"]) for pod in await cluster.pods(name)]
    assert sorted(outputs) == [["0 of 2 at 127.0.0.1"], ["1 of 2 at 127.0.0.1"]]


async def test_no_field_that_volcano_does_not_have_is_taken(cluster):
    document = vcjob("strict-1")
    document["spec"]["minAvailabel"] = 1
    with pytest.raises(KubeError, match=r'unknown field "spec.minAvailabel"'):
        await cluster.make(document, fieldValidation="Strict")
    made = await cluster.make(document)
    assert "minAvailabel" not in made["spec"]


async def test_values_and_queues_are_checked(cluster):
    document = vcjob("checked-1")
    document["spec"]["maxRetry"] = "3"
    with pytest.raises(KubeError, match="must be of type integer") as caught:
        await cluster.make(document)
    assert caught.value.code == "Invalid"
    with pytest.raises(KubeError, match='queue.scheduling.volcano.sh "none" not found'):
        await cluster.make(vcjob("checked-1", queue="none"))


def vcjob(name, **spec):
    container = {"name": "a", "image": "busybox:1", "command": ["true"]}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"tasks": [{"name": "a", "replicas": 1, "template": template}], **spec},
    }


async def test_what_nobody_says_volcano_says(cluster):
    made = await cluster.make(vcjob("said-1"))
    assert (made["spec"]["queue"], made["spec"]["maxRetry"]) == ("default", 3)
    await cluster.until("said-1", "Completed")
