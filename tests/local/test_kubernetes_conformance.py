"""Rules of Kubernetes Jobs that need the API and a real container.

Each docstring states a rule and its source. Starts pods as processes on the local Kubernetes
emulator, or with ``--kubeconfig`` on a real cluster; other rules are in test_cluster.py.
"""

from __future__ import annotations

import re

import pytest

from tests.local.cluster import condition, ending, index, unique

# Pods of an Indexed Job ------------------------------------------------------------------------


def test_each_index_has_a_pod_that_knows_it(cluster):
    """The index is in the environment, in an annotation and a label, and in the pod's name.

    https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode
    """
    job = cluster.run(cluster.indexed("echo $JOB_COMPLETION_INDEX", 3))
    name = job["metadata"]["name"]
    pods = cluster.pods(name)
    assert [index(pod) for pod in pods] == [0, 1, 2]
    for number, pod in enumerate(pods):
        assert re.fullmatch(f"{name}-{number}-[a-z0-9]{{5}}", pod["metadata"]["name"])
        assert pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] == f"{number}"
        assert pod["spec"]["hostname"] == f"{name}-{number}"
        assert cluster.log(pod["metadata"]["name"]) == f"{number}\n"
        [owner] = pod["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["controller"]) == ("Job", name, True)
        assert owner["uid"] == job["metadata"]["uid"]


def test_a_job_that_is_done(cluster):
    """Status and conditions of a Job all of whose indexes have succeeded.

    https://kubernetes.io/docs/concepts/workloads/controllers/job/#terminal-job-conditions
    """
    job = cluster.run(cluster.indexed("true", 3))
    status = job["status"]
    assert (status["succeeded"], status["completedIndexes"]) == (3, "0-2")
    assert not status.get("active")
    assert not status.get("failed")
    assert status["startTime"] <= status["completionTime"]
    done, criteria = condition(job, "Complete"), condition(job, "SuccessCriteriaMet")
    assert (done["status"], criteria["status"]) == ("True", "True")
    assert done["reason"] == criteria["reason"] == "CompletionsReached"
    assert status.get("uncountedTerminatedPods", {}) == {}
    for pod in cluster.pods(job["metadata"]["name"]):
        assert pod["status"]["phase"] == "Succeeded"
        assert not pod["metadata"].get("finalizers")
        [container] = pod["status"]["containerStatuses"]
        assert container["state"]["terminated"]["reason"] == "Completed"
        assert container["state"]["terminated"]["exitCode"] == 0


# Failures ---------------------------------------------------------------------------------------


@pytest.mark.slow  # Kubernetes waits 10 s between attempts
def test_tries_of_each_index(cluster):
    """backoffLimitPerIndex counts each index for itself; all run, whatever becomes of others.

    https://kubernetes.io/docs/concepts/workloads/controllers/job/#backoff-limit-per-index
    """
    failures = "metadata.annotations['batch.kubernetes.io/job-index-failure-count']"
    variables = [{"name": "FAILURES", "valueFrom": {"fieldRef": {"fieldPath": failures}}}]
    job = cluster.run(
        cluster.indexed(
            "echo try $FAILURES; exit $((JOB_COMPLETION_INDEX % 2))",
            4,
            backoffLimitPerIndex=1,
            container={"env": variables},
        )
    )
    status = job["status"]
    assert (status["completedIndexes"], status["failedIndexes"]) == ("0,2", "1,3")
    assert (status["succeeded"], status["failed"]) == (2, 4)
    failed = condition(job, "Failed")
    assert (failed["status"], failed["reason"]) == ("True", "FailedIndexes")
    assert condition(job, "FailureTarget")["reason"] == "FailedIndexes"
    pods = cluster.pods(job["metadata"]["name"])
    assert [index(pod) for pod in pods] == [0, 1, 1, 2, 3, 3]
    said = {(index(pod), cluster.log(pod["metadata"]["name"]).strip()) for pod in pods}
    assert {(1, "try 0"), (1, "try 1"), (3, "try 0"), (3, "try 1")} <= said


def test_a_command_that_is_not_in_the_image(cluster):
    """It fails to start, with exit code 127 or 128 and a reason of its own.

    https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/
    """
    missing = {"command": ["/no/such/command"]}
    job = cluster.run(cluster.job("", backoffLimit=0, container=missing))
    [pod] = cluster.pods(job["metadata"]["name"])
    terminated = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert terminated["reason"] in ("StartError", "ContainerCannotRun")
    assert terminated["exitCode"] in (127, 128)
    assert "no such file or directory" in terminated["message"]


def test_a_missing_secret(cluster):
    """A container whose Secret is not there waits, with CreateContainerConfigError.

    https://kubernetes.io/docs/concepts/configuration/secret/
    """
    source = [{"secretRef": {"name": "farcall-test-none"}}]
    name = cluster.create(cluster.job("true", container={"envFrom": source}))

    def waiting():
        for pod in cluster.pods(name):
            for container in pod["status"].get("containerStatuses", []):
                if container["state"].get("waiting", {}).get("message"):
                    return container["state"]["waiting"]
        return None

    state = cluster.until(waiting)
    assert state["reason"] == "CreateContainerConfigError"
    assert 'secret "farcall-test-none" not found' in state["message"]


# Deadlines, suspension, time to live -----------------------------------------------------------


def test_a_deadline_can_be_set_later(cluster, gate):
    """activeDeadlineSeconds is mutable: 0 ends a running Job, and its record stays.

    https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/job-v1/#lifecycle
    """
    name = cluster.create(cluster.indexed(gate[0], 2))
    cluster.running(name, 2)
    cluster.patch(
        name,
        {
            "metadata": {"annotations": {"why": "enough"}},
            "spec": {"activeDeadlineSeconds": 0, "suspend": False},
        },
    )
    job = cluster.ended(name)
    assert condition(job, "Failed")["reason"] == "DeadlineExceeded"
    assert job["metadata"]["annotations"]["why"] == "enough"
    cluster.until(lambda: cluster.pods(name) == [])


def test_sigterm_and_its_grace(cluster, tmp_path):
    """A pod that is deleted gets SIGTERM, and its grace period before SIGKILL.

    https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination
    """
    rules = [{"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [9]}}]
    document = cluster.indexed(
        "trap 'exit 9' TERM; echo up; while :; do sleep 0.05; done",
        1,
        backoffLimitPerIndex=3,
        podFailurePolicy={"rules": rules},
        pod={"terminationGracePeriodSeconds": 30},
    )
    name = cluster.create(document)
    [pod] = cluster.running(name)
    cluster.until(lambda: cluster.log(pod["metadata"]["name"]))
    cluster.ask("DELETE", cluster.path("pods", pod["metadata"]["name"]))
    job = cluster.ended(name)
    assert job["status"]["failedIndexes"] == "0"


# Quota ------------------------------------------------------------------------------------------


def test_a_quota_that_lets_no_pod_be_made(cluster):
    """The Job stands without a pod, and an event says why; the API answers 403 for a pod.

    https://kubernetes.io/docs/concepts/policy/resource-quotas/
    """
    if cluster.local is None:
        pytest.skip("a quota would stop others in this namespace")
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": unique()},
        "spec": {"hard": {"requests.cpu": "50m"}},
    }
    answer = cluster.ask("POST", cluster.path("resourcequotas"), quota)
    assert answer.status == 201, answer.body
    try:
        name = cluster.create(cluster.job("true"))
        event = cluster.until(lambda: cluster.events_of(name, "FailedCreate"))[0]
        assert f"exceeded quota: {quota['metadata']['name']}" in event["message"]
        assert cluster.pods(name) == []
    finally:
        cluster.ask("DELETE", cluster.path("resourcequotas", quota["metadata"]["name"]))
    assert ending(cluster.ended(name)) == "Complete"
