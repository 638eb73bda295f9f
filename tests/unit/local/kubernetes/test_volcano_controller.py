"""Volcano jobs on a store, with pods that end as a test says: phases, policies and gangs."""

from __future__ import annotations

import asyncio

import pytest

from farcall.backends.kubernetes import volcano as documents
from farcall.local.kubernetes import volcano_admission
from farcall.local.kubernetes.kinds import (
    JOB,
    NODE,
    POD,
    POD_GROUP,
    SERVICE,
    VOLCANO_COMMAND,
    VOLCANO_JOB,
    VOLCANO_QUEUE,
)
from farcall.local.kubernetes.store import Store
from farcall.local.kubernetes.timing import Timing
from farcall.local.kubernetes.volcano_controller import VolcanoController
from farcall.local.kubernetes.volcano_gangs import Gangs
from tests.support.patience import until_async

CONTAINER = {"name": "task", "image": "a", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}


class Cluster:
    """A store, Volcano, and a kubelet that starts what may start."""

    def __init__(self, cpus=8):
        self.store = Store()
        self.gangs = Gangs(self.store, self._wake)
        self.controller = VolcanoController(self.store, Timing(sync_s=0.0, ttl_scale=0.0))
        self._loop = asyncio.get_running_loop()
        self._is_waking = False
        self.store.subscribe(self._note)
        self.store.create(
            NODE,
            {
                "metadata": {"name": "one"},
                "status": {
                    "allocatable": {"cpu": str(cpus), "memory": "64Gi", "pods": "100"},
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            },
        )

    def close(self):
        self.controller.close()
        self.gangs.close()

    def _note(self, change, kind, document, _before):
        self.controller.note(change, kind, document)
        self.gangs.note(change, kind, document)
        if kind == POD:
            self._wake()

    def _wake(self):
        if not self._is_waking:
            self._is_waking = True
            self._loop.call_soon(self._start)

    def _start(self):
        self._is_waking = False
        for pod in self.store.list(POD):
            if pod["metadata"].get("deletionTimestamp"):
                meta = pod["metadata"]
                self.store.delete(POD, meta["namespace"], meta["name"], grace_s=0)
            elif not pod["spec"].get("nodeName") and self.gangs.may_start(pod):
                spec = {**pod["spec"], "nodeName": "one"}
                self.store.update(POD, {**pod, "spec": spec, "status": {"phase": "Running"}})

    # --- what a test does ---------------------------------------------------------------------

    def submit(self, *tasks, name="one", **spec):
        made = {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"tasks": list(tasks), **spec},
        }
        made = volcano_admission.default(made)
        volcano_admission.check(self.store, made)
        return self.store.create(VOLCANO_JOB, made)

    def job(self, name="one"):
        return self.store.get(VOLCANO_JOB, "default", name)

    def phase(self, name="one"):
        job = self.job(name)
        return job and ((job.get("status") or {}).get("state") or {}).get("phase")

    def pods(self, phase="Running"):
        return [
            pod["metadata"]["name"]
            for pod in self.store.list(POD)
            if pod["status"]["phase"] == phase
        ]

    def end(self, name, code=0):
        pod = self.store.get(POD, "default", name)
        ended = {"name": "task", "state": {"terminated": {"exitCode": code}}}
        phase = "Failed" if code else "Succeeded"
        status = {"phase": phase, "containerStatuses": [ended]}
        self.store.update(POD, {**pod, "status": status})

    def command(self, action):
        command = documents.command(self.job(), action)
        command["metadata"]["namespace"] = "default"
        self.store.create(VOLCANO_COMMAND, command)

    async def until(self, phase, name="one"):
        await until_async(lambda: _is(self.phase(name) == phase))

    async def until_pods(self, *names, phase="Running"):
        await until_async(lambda: _is(self.pods(phase) == list(names)))


async def _is(fact):
    return fact


@pytest.fixture
async def cluster():
    made = Cluster()
    yield made
    made.close()


def task(name="w", replicas=2, **fields):
    template = {"spec": {"containers": [CONTAINER]}}
    return {"name": name, "replicas": replicas, "template": template, **fields}


def on(event, action):
    return {"event": event, "action": action}


async def test_all_pods_run_and_their_end_is_the_job_s(cluster):
    cluster.submit(task("ps", 1), task("w", 2), plugins={"svc": [], "env": []})
    await cluster.until_pods("one-ps-0", "one-w-0", "one-w-1")
    await cluster.until("Running")
    status = cluster.job()["status"]
    assert status["running"] == status["minAvailable"] == 3
    assert status["taskStatusCount"]["w"] == {"phase": {"Running": 2}}
    assert cluster.store.get(SERVICE, "default", "one") is not None
    pod = cluster.store.get(POD, "default", "one-w-1")
    assert pod["spec"]["schedulerName"] == "volcano"
    labels = pod["metadata"]["labels"]
    assert (labels["volcano.sh/job-name"], labels["volcano.sh/task-spec"]) == ("one", "w")
    assert pod["metadata"]["annotations"]["volcano.sh/job-retry-count"] == "0"
    for name in cluster.pods():
        cluster.end(name)
    await cluster.until("Completed")
    assert cluster.job()["status"]["succeeded"] == 3


async def test_completed_means_that_enough_pods_succeeded(cluster):
    cluster.submit(task("w", 2, minAvailable=1), minAvailable=1)
    await cluster.until_pods("one-w-0", "one-w-1")
    cluster.end("one-w-0")
    cluster.end("one-w-1", 1)
    await cluster.until("Completed")


async def test_without_policies_a_failure_counts_when_all_have_ended(cluster):
    cluster.submit(task("w", 2))
    await cluster.until_pods("one-w-0", "one-w-1")
    cluster.end("one-w-0", 1)
    await until_async(lambda: _is(cluster.job()["status"].get("failed") == 1))
    assert cluster.phase() == "Running"
    cluster.end("one-w-1")
    await cluster.until("Failed")


async def test_a_restart_makes_all_pods_anew_as_often_as_is_allowed(cluster):
    policies = [on("PodFailed", "RestartJob")]
    cluster.submit(task("w", 2), policies=policies, maxRetry=2)
    await cluster.until_pods("one-w-0", "one-w-1")
    first = {pod["metadata"]["uid"] for pod in cluster.store.list(POD)}
    cluster.end("one-w-1", 3)
    await until_async(lambda: _is(cluster.job()["status"].get("retryCount") == 1))
    await cluster.until_pods("one-w-0", "one-w-1")
    await cluster.until("Running")
    assert first.isdisjoint(pod["metadata"]["uid"] for pod in cluster.store.list(POD))
    pod = cluster.store.get(POD, "default", "one-w-0")
    assert pod["metadata"]["annotations"]["volcano.sh/job-retry-count"] == "1"
    cluster.end("one-w-1", 3)
    await cluster.until("Failed")
    assert cluster.pods("Failed") == ["one-w-1"]  # of the last attempt, with its log


async def test_the_end_of_a_task_ends_the_job_and_the_others(cluster):
    main = task("main", 1, policies=[on("TaskCompleted", "CompleteJob")])
    cluster.submit(main, task("w", 2))
    await cluster.until_pods("one-main-0", "one-w-0", "one-w-1")
    cluster.end("one-main-0")
    await cluster.until("Completed")
    assert [pod["metadata"]["name"] for pod in cluster.store.list(POD)] == ["one-main-0"]


@pytest.mark.parametrize(("code", "phase"), [(3, "Terminated"), (4, "Aborted"), (5, "Running")])
async def test_policies_go_by_exit_codes(cluster, code, phase):
    policies = [
        {"exitCode": 3, "action": "TerminateJob"},
        {"exitCode": 4, "action": "AbortJob"},
    ]
    cluster.submit(task("w", 2), policies=policies)
    await cluster.until_pods("one-w-0", "one-w-1")
    cluster.end("one-w-0", code)
    await until_async(lambda: _is(cluster.pods("Failed") == ["one-w-0"]))
    await cluster.until(phase)


async def test_a_pod_that_somebody_deletes_is_evicted(cluster):
    cluster.submit(task("w", 2), policies=[on("PodEvicted", "TerminateJob")])
    await cluster.until_pods("one-w-0", "one-w-1")
    cluster.store.delete(POD, "default", "one-w-1", grace_s=0)
    await cluster.until("Terminated")


async def test_a_task_s_policy_comes_before_the_job_s(cluster):
    own = task("w", 1, policies=[on("PodFailed", "CompleteJob")])
    cluster.submit(own, task("x", 1), policies=[on("PodFailed", "AbortJob")])
    await cluster.until_pods("one-w-0", "one-x-0")
    cluster.end("one-w-0", 1)
    await cluster.until("Completed")


async def test_a_command_aborts_the_job_once_and_keeps_what_has_ended(cluster):
    cluster.submit(task("w", 2))
    await cluster.until_pods("one-w-0", "one-w-1")
    cluster.end("one-w-0")
    cluster.command("AbortJob")
    await cluster.until("Aborted")
    assert cluster.store.list(VOLCANO_COMMAND) == []
    assert [pod["metadata"]["name"] for pod in cluster.store.list(POD)] == ["one-w-0"]
    assert cluster.job()["spec"]["tasks"][0]["name"] == "w"


async def test_an_aborted_job_can_be_resumed(cluster):
    cluster.submit(task("w", 1))
    await cluster.until_pods("one-w-0")
    cluster.command("AbortJob")
    await cluster.until("Aborted")
    cluster.command("ResumeJob")
    await cluster.until_pods("one-w-0")
    await cluster.until("Running")


async def test_a_phase_that_somebody_writes_is_acted_upon(cluster):
    """As TorchX cancels."""
    cluster.submit(task("w", 2))
    await cluster.until("Running")
    job = cluster.job()
    cluster.store.update(VOLCANO_JOB, {**job, "status": {"state": {"phase": "Aborted"}}})
    await until_async(lambda: _is(cluster.store.list(POD) == []))
    assert cluster.phase() == "Aborted"


async def test_an_ended_job_goes_after_its_time(cluster):
    cluster.submit(task("w", 1), ttlSecondsAfterFinished=60)
    await cluster.until_pods("one-w-0")
    cluster.end("one-w-0")
    await until_async(lambda: _is(cluster.job() is None))


# --- gangs --------------------------------------------------------------------------------------


async def test_a_gang_that_does_not_fit_has_no_pods_until_it_does(cluster):
    cluster.submit(task("w", 5), name="one")
    await cluster.until("Running")
    cluster.submit(task("w", 5), name="two")
    await until_async(lambda: _is(_message(cluster, "two") != ""))
    assert _message(cluster, "two") == "5 tasks cannot be placed together: insufficient cpu"
    assert len(cluster.store.list(POD)) == 5
    assert cluster.phase("two") == "Pending"
    for name in cluster.pods():
        cluster.end(name)
    await cluster.until("Running", "two")


def _message(cluster, job):
    for group in cluster.store.list(POD_GROUP):
        if group["metadata"]["ownerReferences"][0]["name"] == job:
            conditions = group["status"].get("conditions") or [{}]
            return conditions[-1].get("message", "")
    return ""


async def test_a_closed_queue_lets_nobody_in(cluster):
    queue = cluster.store.create(
        VOLCANO_QUEUE, {"metadata": {"name": "q"}, "spec": {}, "status": {"state": "Open"}}
    )
    cluster.store.update(VOLCANO_QUEUE, {**queue, "status": {"state": "Closed"}})
    job = volcano_admission.default(
        {
            "metadata": {"name": "one", "namespace": "default"},
            "spec": {"tasks": [task()], "queue": "q"},
        }
    )
    cluster.store.create(VOLCANO_JOB, job)
    await until_async(lambda: _is(_message(cluster, "one") == "queue q is not open"))
    assert cluster.store.list(POD) == []


def plain_pod(cluster, job, number):
    owner = {"kind": "Job", "name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}
    meta = {
        "name": f"plain-{number}",
        "namespace": "default",
        "ownerReferences": [{**owner, "apiVersion": "batch/v1", "controller": True}],
    }
    spec = {"containers": [CONTAINER], "schedulerName": "volcano"}
    cluster.store.create(POD, {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})


async def test_pods_of_a_plain_job_start_when_all_of_its_gang_are_there(cluster):
    annotations = {"scheduling.volcano.sh/group-min-member": "3"}
    meta = {"name": "plain", "namespace": "default", "annotations": annotations}
    job = cluster.store.create(JOB, {"metadata": meta, "spec": {}})
    for number in range(2):
        plain_pod(cluster, job, number)
    await until_async(lambda: _is(len(cluster.store.list(POD_GROUP)) == 1))
    (group,) = cluster.store.list(POD_GROUP)
    assert group["spec"]["minMember"] == 3
    await until_async(
        lambda: _is(cluster.store.list(POD_GROUP)[0]["status"]["phase"] == "Inqueue")
    )
    assert cluster.pods() == []
    plain_pod(cluster, job, 2)
    await cluster.until_pods("plain-0", "plain-1", "plain-2")
    await until_async(
        lambda: _is(cluster.store.list(POD_GROUP)[0]["status"]["phase"] == "Running")
    )
