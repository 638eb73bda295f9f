"""Rules of Kubernetes Jobs that need the API and a real container.

Each docstring states a rule and its source. Starts pods as processes on the local Kubernetes
emulator, or with ``--kubeconfig`` on a real cluster; other rules are in test_cluster.py.
"""

from __future__ import annotations

import re

import pytest

from tests.local.cluster import ending, index, unique

# Pods of an Indexed Job ------------------------------------------------------------------------


def test_pod_knows_its_index(cluster):
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


# Failures ---------------------------------------------------------------------------------------


def test_missing_command_fails_to_start(cluster):
    """The container fails to start, with a reason and exit code 127 or 128.

    https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/
    """
    missing = {"command": ["/no/such/command"]}
    job = cluster.run(cluster.job("", backoffLimit=0, container=missing))
    [pod] = cluster.pods(job["metadata"]["name"])
    terminated = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert terminated["reason"] in ("StartError", "ContainerCannotRun")
    assert terminated["exitCode"] in (127, 128)
    assert "no such file or directory" in terminated["message"]


def test_missing_secret_keeps_container_waiting(cluster):
    """A container whose Secret is missing waits with CreateContainerConfigError.

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


# Quota ------------------------------------------------------------------------------------------


def test_exhausted_quota_prevents_pods(cluster):
    """The Job gets no pod, and an event has the reason.

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
