"""Jobs and pods of the local Kubernetes emulator, on its store and without its API.

Starts pods as processes in this process's event loop, because phases and reasons come from exit
codes.
"""

import asyncio
import contextlib
import uuid

import pytest

from farcall_local.runners.credentials import RoleCredentials
from farcall_local.runners.process import ProcessRunner
from farcall_local.runners.runner import Exit
from farcall_local.services.signatures import AccessKey
from tests.emulators.kubernetes import documents, job_pods
from tests.emulators.kubernetes.cluster import Cluster
from tests.emulators.kubernetes.kinds import (
    EVENT,
    JOB,
    POD,
    SECRET,
)
from tests.emulators.kubernetes.store import Store
from tests.emulators.kubernetes.timing import Timing
from tests.support.patience import PATIENCE_S

LONG = 2**31 - 1
ENDED = ("Succeeded", "Failed")
#: A command that runs until it is stopped, and prints when it can be stopped.
FOREVER = ("sh", "-c", "trap 'exit 143' TERM; echo ready; while :; do sleep 0.05; done")


class World:
    """A store with a cluster, and methods to inspect both."""

    def __init__(self, store, cluster):
        self.store = store
        self.cluster = cluster

    def create(
        self, name="a", command=("true",), completions=2, *, template=None, pod=None, **spec
    ):
        container = {
            "name": "task",
            "image": "farcall-local-process",
            "command": list(command),
            "resources": {"requests": {"cpu": "100m"}},
            **(template or {}),
        }
        document = {
            "metadata": {"name": name, "namespace": "default", "uid": str(uuid.uuid4())},
            "spec": {
                "completionMode": "Indexed",
                "completions": completions,
                "parallelism": completions,
                "backoffLimit": LONG,
                "podReplacementPolicy": "Failed",
                "template": {
                    "spec": {"restartPolicy": "Never", "containers": [container], **(pod or {})}
                },
                **spec,
            },
        }
        document["spec"] = {k: v for k, v in document["spec"].items() if v is not None}
        return self.store.create(JOB, documents.fill(JOB, document))

    def change(self, name="a", **spec):
        job = self.job(name)
        return self.store.update(JOB, {**job, "spec": {**job["spec"], **spec}})

    def job(self, name="a"):
        return self.store.get(JOB, "default", name)

    def status(self, name="a"):
        return self.job(name).get("status") or {}

    def pods(self, index=None):
        found = self.store.list(POD)
        return [each for each in found if index is None or job_pods.index_of(each) == index]

    def pod(self, index=0):
        (found,) = self.pods(index)
        return found

    def events(self, name):
        found = self.store.list(EVENT)
        return [each for each in found if each["involvedObject"]["name"].startswith(name)]

    def reasons(self, name):
        return [each["reason"] for each in self.events(name)]

    def log(self, pod):
        log = self.cluster.kubelet.logs.get(pod["metadata"]["uid"])
        return [line.decode() for _, line in log.lines] if log else []

    async def until(self, true):
        """Wait until a function returns a true value; return the value."""
        end = asyncio.get_running_loop().time() + PATIENCE_S
        while asyncio.get_running_loop().time() < end:
            with contextlib.suppress(KeyError, IndexError, TypeError, ValueError, StopIteration):
                if found := true():
                    return found
            await asyncio.sleep(0.01)
        raise AssertionError(f"not so in time: {self.status()}, {self.pods()}")

    async def ended(self, name="a"):
        return await self.until(
            lambda: next(
                each
                for each in self.status(name)["conditions"]
                if each["type"] in ("Complete", "Failed") and each["status"] == "True"
            )
        )

    async def waiting(self, reason):
        return await self.until(lambda: _state(self.pods()[0], "waiting")["reason"] == reason)

    async def running(self, name="a", many=1):
        """Wait until pods that run `FOREVER` can be stopped."""
        await self.until(
            lambda: (
                sum("ready" in self.log(pod) for pod in self.pods()) >= many
                and self.status(name)["ready"] == many
            )
        )


def _state(pod, kind):
    return pod["status"]["containerStatuses"][0]["state"][kind]


def conditions(document):
    return {each["type"]: each for each in document["status"]["conditions"]}


@pytest.fixture
async def world():
    store = Store()
    timing = Timing(sync_s=0.01, retry_s=0.02, pull_s=0.05, refused_s=0.05, grace_scale=0.05)
    credentials = RoleCredentials(lambda *_: None, AccessKey("", ""), enforced=True)
    runner = ProcessRunner("http://127.0.0.1:1", credentials)
    cluster = Cluster(store, runner, cpus=4, timing=timing)
    yield World(store, cluster)
    await cluster.close()
    await runner.close()


async def test_policy_fails_index_immediately(world):
    rule = {
        "action": "FailIndex",
        "onExitCodes": {"containerName": "task", "operator": "In", "values": [60, 61]},
    }
    world.create(
        command=("sh", "-c", "exit $((60 + JOB_COMPLETION_INDEX * 5))"),
        backoffLimitPerIndex=1,
        podFailurePolicy={"rules": [rule]},
    )
    assert (await world.ended())["reason"] == "FailedIndexes"
    assert (len(world.pods(0)), len(world.pods(1))) == (1, 2)


async def test_policy_fails_job_and_names_pod(world):
    rules = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [0, 1]}},
    ]
    world.create(
        completions=1,
        command=("sh", "-c", "exit 7"),
        backoffLimit=6,
        podFailurePolicy={"rules": rules},
    )
    found = await world.ended()
    assert (found["type"], found["reason"]) == ("Failed", "PodFailurePolicy")
    name = world.pod()["metadata"]["name"]
    assert found["message"] == (
        f"Container task for pod default/{name} failed with exit code 7 matching FailJob rule at "
        "index 1"
    )
    assert [each["type"] for each in world.status()["conditions"]] == ["FailureTarget", "Failed"]


async def test_ignored_disruption_costs_no_attempt(world):
    rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    world.create(
        completions=1,
        command=FOREVER,
        backoffLimitPerIndex=0,
        podFailurePolicy={"rules": [rule]},
    )
    await world.running()
    first = world.pod()["metadata"]["name"]
    world.cluster.preempt("a")
    await world.until(lambda: world.pods() and world.pod()["metadata"]["name"] != first)
    annotations = world.pod()["metadata"]["annotations"]
    assert annotations[job_pods.FAILURES] == "0"
    assert annotations[job_pods.IGNORED_FAILURES] == "1"
    assert "failed" not in world.status()


async def test_active_pods_are_limited_by_parallelism(world):
    most = 0

    def look(_, kind, document):
        nonlocal most
        if kind is JOB:
            most = max(most, (document.get("status") or {}).get("active", 0))

    world.store.subscribe(look)
    world.create(completions=6, parallelism=2)
    await world.ended()
    assert most == 2


async def test_job_is_suspended_and_resumed(world):
    world.create(command=FOREVER)
    await world.running(many=2)
    world.change(suspend=True)
    await world.until(lambda: world.pods() == [])
    assert conditions(world.job())["Suspended"]["reason"] == "JobSuspended"
    assert "startTime" not in world.status()
    assert "failed" not in world.status()
    world.change(suspend=False)
    await world.running(many=2)
    assert conditions(world.job())["Suspended"]["status"] == "False"


async def test_expired_job_is_deleted_with_pods(world):
    world.create(ttlSecondsAfterFinished=0)
    await world.until(lambda: world.job() is None)
    await world.until(lambda: world.pods() == [])


async def test_deleted_pod_is_replaced(world):
    world.create(completions=1, command=FOREVER)
    await world.running()
    first = world.pod()["metadata"]["name"]
    world.store.delete(POD, "default", first)
    await world.until(lambda: world.pods() and world.pod()["metadata"]["name"] != first)
    assert world.status()["failed"] == 1


async def test_out_of_memory_pod_has_reason(world):
    world.create(completions=1, command=FOREVER, backoffLimitPerIndex=0)
    await world.running()
    world.cluster.oom("a")
    await world.ended()
    ended = _state(world.pod(), "terminated")
    assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")


async def test_process_ignoring_sigterm_is_killed(world):
    command = ("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done")
    world.create(completions=1, command=command, pod={"terminationGracePeriodSeconds": 1})
    await world.running()
    ended = []
    world.store.subscribe(
        lambda _, kind, document: (
            ended.append(_state(document, "terminated")["exitCode"])
            if kind is POD and document["status"]["phase"] in ENDED
            else None
        )
    )
    world.change(activeDeadlineSeconds=0)
    await world.until(lambda: ended)
    assert ended[0] == 137


async def test_variables_from_all_sources_are_expanded(world):
    meta = {"name": "s", "namespace": "default"}
    world.store.create(SECRET, {"metadata": meta, "data": {"x": "MQ=="}})
    env = [
        {"name": "A", "value": "a"},
        {"name": "B", "value": "$(A)$(NONE)$$(A)"},
        {"name": "C", "valueFrom": {"secretKeyRef": {"name": "s", "key": "x"}}},
        {"name": "E", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        {"name": "F", "value": "http://a-0.nodes.default.svc:1"},
    ]
    template = {
        "env": env,
        "envFrom": [{"secretRef": {"name": "s"}}],
        "args": ["$(A)", "$$(A)"],
    }
    command = ("sh", "-c", 'echo "$B|$C|$E|$x|$F|$0|$1"')
    world.create(completions=1, command=command, template=template, pod={"subdomain": "nodes"})
    await world.ended()
    assert world.log(world.pod()) == ["a$(NONE)$(A)|1|default|1|http://127.0.0.1:1|a|$(A)"]


class InstantRunner:
    """A runner whose containers exit immediately."""

    async def prepare(self, spec):
        pass

    async def start(self, spec):
        return self

    async def wait(self):
        return Exit(0)


async def test_cost_per_pod_is_constant():
    store = Store()
    cluster = Cluster(store, InstantRunner(), cpus=2, timing=Timing(sync_s=0.01))
    world = World(store, cluster)
    costs = []
    for number in (50, 500):
        before = store.version
        world.create(f"of-{number}", completions=number, template={"resources": {}})
        await world.ended(f"of-{number}")
        costs.append((store.version - before) / number)
    await cluster.close()
    # A pod is created, bound, started, run, finished and released, and has four events.
    assert max(costs) < 15
