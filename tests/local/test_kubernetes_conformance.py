"""What Kubernetes promises of Jobs and their pods, checked against the embedded one or a real one.

Each test's docstring states the rule and where it stands. Pods run real commands. With
``--kubeconfig FILE`` the same rules are asked of the cluster of that file; what needs the hooks of
the embedded one is skipped there.
"""

from __future__ import annotations

import re

import pytest

from tests.local.cluster import MERGE, condition, ending, index, unique

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


def test_a_running_job(cluster, gate):
    """Running pods are active and ready, bound to a node, with the finalizer that counts them.

    https://kubernetes.io/docs/concepts/workloads/controllers/job/#job-tracking-with-finalizers
    """
    name = cluster.create(cluster.indexed(gate[0], 2))
    pods = cluster.running(name, 2)
    job = cluster.until(
        lambda: [j for j in [cluster.get("jobs", name)] if j["status"].get("ready") == 2]
    )[0]
    assert job["status"]["active"] == 2
    assert "completionTime" not in job["status"]
    for pod in pods:
        assert pod["metadata"]["finalizers"] == ["batch.kubernetes.io/job-tracking"]
        assert pod["spec"]["nodeName"]
        assert condition(pod, "PodScheduled")["status"] == "True"
        assert condition(pod, "Ready")["status"] == "True"
        assert "startedAt" in pod["status"]["containerStatuses"][0]["state"]["running"]
    gate[1]()
    assert ending(cluster.ended(name)) == "Complete"


def test_events_of_a_job(cluster):
    """Pods that are made, and the end, are told as events of the Job.

    https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/
    """
    name = cluster.run(cluster.job("true"))["metadata"]["name"]
    [made] = cluster.until(lambda: cluster.events_of(name, "SuccessfulCreate"))
    [pod] = cluster.pods(name)
    assert made["message"] == f"Created pod: {pod['metadata']['name']}"
    assert made["type"] == "Normal"
    cluster.until(lambda: cluster.events_of(name, "Completed"))
    cluster.until(lambda: cluster.events_of(pod["metadata"]["name"], "Scheduled", "Pod"))


def test_no_more_run_at_once_than_parallelism(cluster, gate):
    """parallelism limits the pods at a time; it can be changed, and 0 holds all back.

    https://kubernetes.io/docs/concepts/workloads/controllers/job/#controlling-parallelism
    """
    name = cluster.create(cluster.indexed(gate[0], 4, parallelism=0))
    job = cluster.until(
        lambda: [j for j in [cluster.get("jobs", name)] if j["status"].get("startTime")]
    )[0]
    assert not job["status"].get("active")
    assert cluster.pods(name) == []
    cluster.patch(name, {"spec": {"parallelism": 2}})
    assert [index(pod) for pod in cluster.running(name, 2)] == [0, 1]
    assert len(cluster.pods(name)) == 2
    gate[1]()
    assert cluster.ended(name)["status"]["succeeded"] == 4


def test_an_indexed_job_grows(cluster, gate):
    """completions can be changed together with parallelism.

    https://kubernetes.io/docs/concepts/workloads/controllers/job/#elastic-indexed-jobs
    """
    name = cluster.create(cluster.indexed(gate[0], 2))
    cluster.running(name, 2)
    path = cluster.path("jobs", name)
    answer = cluster.ask("PATCH", path, {"spec": {"completions": 3}}, content_type=MERGE)
    assert answer.status == 422
    cluster.patch(name, {"spec": {"completions": 3, "parallelism": 3}})
    cluster.running(name, 3)
    gate[1]()
    assert cluster.ended(name)["status"]["completedIndexes"] == "0-2"


def test_variables_from_fields(cluster):
    """A variable can have a field of its pod; one that is missing is empty.

    https://kubernetes.io/docs/concepts/workloads/pods/downward-api/
    """

    def variable(name, path):
        return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}

    variables = [
        variable("POD", "metadata.name"),
        variable("PLACE", "metadata.namespace"),
        variable("INDEX", "metadata.annotations['batch.kubernetes.io/job-completion-index']"),
        variable("JOB", "metadata.labels['batch.kubernetes.io/job-name']"),
        variable("NOTHING", "metadata.annotations['absent']"),
        {"name": "WORDS", "value": "$(PLACE) $(UNKNOWN) $$(PLACE)"},
    ]
    script = 'echo "$POD|$PLACE|$INDEX|$JOB|$NOTHING|$WORDS"'
    name = cluster.run(cluster.indexed(script, 1, container={"env": variables}))["metadata"][
        "name"
    ]
    [pod] = cluster.pods(name)
    place = cluster.namespace
    assert cluster.log(pod["metadata"]["name"]).strip() == (
        f"{pod['metadata']['name']}|{place}|0|{name}||{place} $(UNKNOWN) $(PLACE)"
    )


# Failures ---------------------------------------------------------------------------------------


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


def test_an_exit_code_that_ends_an_index(cluster):
    """FailIndex ends an index at once, whatever tries it has left.

    https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy
    """
    rules = [{"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [42, 43]}}]
    job = cluster.run(
        cluster.indexed(
            "exit $((42 * JOB_COMPLETION_INDEX))",
            2,
            backoffLimitPerIndex=5,
            podFailurePolicy={"rules": rules},
        )
    )
    assert job["status"]["failedIndexes"] == "1"
    assert job["status"]["completedIndexes"] == "0"
    assert len(cluster.pods(job["metadata"]["name"])) == 2


def test_not_in_never_matches_success(cluster):
    """NotIn matches what failed with another code: exit code 0 is no failure.

    https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/job-v1/#PodFailurePolicy
    """
    rules = [{"action": "FailIndex", "onExitCodes": {"operator": "NotIn", "values": [143]}}]
    script = "test $JOB_COMPLETION_INDEX = 0 || exit 7"
    job = cluster.run(
        cluster.indexed(script, 2, backoffLimitPerIndex=3, podFailurePolicy={"rules": rules})
    )
    assert (job["status"]["completedIndexes"], job["status"]["failedIndexes"]) == ("0", "1")
    assert len(cluster.pods(job["metadata"]["name"])) == 2


def test_an_exit_code_that_ends_a_job(cluster, gate):
    """FailJob ends all: other pods are terminated.

    https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy
    """
    rules = [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]
    script = f"test $JOB_COMPLETION_INDEX = 0 && exit 42; {gate[0]}"
    job = cluster.run(cluster.indexed(script, 2, podFailurePolicy={"rules": rules}))
    failed = condition(job, "Failed")
    assert failed["reason"] == "PodFailurePolicy"
    name = job["metadata"]["name"]
    assert re.search(
        rf"Container task for pod \S+/{name}-0-\w+ failed with exit code 42 matching FailJob rule "
        "at index 0",
        failed["message"],
    )
    assert not job["status"].get("active")


def test_first_rule_that_matches_counts(cluster):
    """Rules are tried in order, and none after the one that matches.

    https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy
    """
    rules = [
        {"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [42]}},
        {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [41]}},
    ]
    job = cluster.run(
        cluster.indexed("exit 42", 1, backoffLimitPerIndex=3, podFailurePolicy={"rules": rules})
    )
    assert condition(job, "Failed")["reason"] == "FailedIndexes"


def test_too_many_failures(cluster):
    """Without limits per index backoffLimit counts the failures of the whole Job.

    https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-backoff-failure-policy
    """
    job = cluster.run(cluster.job("exit 3", backoffLimit=0))
    failed = condition(job, "Failed")
    assert failed["reason"] == "BackoffLimitExceeded"
    assert failed["message"] == "Job has reached the specified backoff limit"
    assert job["status"]["failed"] == 1
    [pod] = cluster.pods(job["metadata"]["name"])
    terminated = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (pod["status"]["phase"], terminated["exitCode"]) == ("Failed", 3)
    assert terminated["reason"] == "Error"


def test_too_many_failed_indexes(cluster, gate):
    """maxFailedIndexes ends a Job as soon as one more index has failed.

    https://kubernetes.io/docs/concepts/workloads/controllers/job/#backoff-limit-per-index
    """
    script = f"test $JOB_COMPLETION_INDEX -gt 1 && exit 1; {gate[0]}"
    job = cluster.run(cluster.indexed(script, 4, backoffLimitPerIndex=0, maxFailedIndexes=1))
    assert condition(job, "Failed")["reason"] == "MaxFailedIndexesExceeded"
    assert not job["status"].get("active")


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


def test_a_pod_that_somebody_deletes(cluster, gate):
    """A deleted pod counts as failed, and its index gets another.

    https://kubernetes.io/docs/concepts/workloads/controllers/job/#handling-pod-and-container-failures
    """
    name = cluster.create(cluster.indexed(gate[0], 1, backoffLimitPerIndex=1))
    [pod] = cluster.running(name)
    path = cluster.path("pods", pod["metadata"]["name"])
    answer = cluster.ask("DELETE", path)
    assert answer.status == 200
    assert answer.body["metadata"]["deletionTimestamp"]
    assert answer.body["metadata"]["deletionGracePeriodSeconds"] == 1
    cluster.until(lambda: cluster.ask("GET", path).status == 404)
    another = cluster.until(
        lambda: [
            one
            for one in cluster.pods(name)
            if one["metadata"]["uid"] != pod["metadata"]["uid"]
            and one["status"].get("phase") == "Running"
        ]
    )[0]
    annotations = another["metadata"]["annotations"]
    assert annotations["batch.kubernetes.io/job-index-failure-count"] == "1"
    gate[1]()
    job = cluster.ended(name)
    assert (job["status"]["succeeded"], job["status"]["failed"]) == (1, 1)


def test_an_evicted_pod_is_ignored_where_the_policy_says_so(cluster, gate):
    """The eviction API marks a pod as DisruptionTarget; Ignore has it replaced, and not counted.

    https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
    """
    rules = [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]
    name = cluster.create(
        cluster.indexed(gate[0], 1, backoffLimitPerIndex=0, podFailurePolicy={"rules": rules})
    )
    [pod] = cluster.running(name)
    pod_name = pod["metadata"]["name"]
    eviction = {
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod_name},
    }  # fmt: skip
    answer = cluster.ask("POST", cluster.path("pods", pod_name, "eviction"), eviction)
    assert answer.status == 201, answer.body

    def another():
        return [
            one
            for one in cluster.pods(name)
            if one["metadata"]["uid"] != pod["metadata"]["uid"]
            and one["status"].get("phase") == "Running"
        ]

    annotations = cluster.until(another)[0]["metadata"]["annotations"]
    assert annotations["batch.kubernetes.io/job-index-failure-count"] == "0"
    assert annotations["batch.kubernetes.io/job-index-ignored-failure-count"] == "1"
    gate[1]()
    job = cluster.ended(name)
    assert ending(job) == "Complete"


# Deadlines, suspension, time to live -----------------------------------------------------------


def test_deadline_of_a_job(cluster, gate):
    """activeDeadlineSeconds ends a Job and its pods.

    https://kubernetes.io/docs/concepts/workloads/controllers/job/#job-termination-and-cleanup
    """
    job = cluster.run(cluster.indexed(gate[0], 2, activeDeadlineSeconds=1))
    failed = condition(job, "Failed")
    assert failed["reason"] == "DeadlineExceeded"
    assert failed["message"] == "Job was active longer than specified deadline"
    assert condition(job, "FailureTarget")["reason"] == "DeadlineExceeded"
    assert not job["status"].get("active")
    cluster.until(lambda: cluster.pods(job["metadata"]["name"]) == [])


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


def test_a_suspended_job_is_ended_by_a_deadline_that_has_passed(cluster):
    """Resumed with a deadline of 0 s it gets its start time, and no pod.

    https://kubernetes.io/docs/concepts/workloads/controllers/job/#suspending-a-job
    """
    name = cluster.create(cluster.indexed("true", 2, suspend=True))
    cluster.until(lambda: condition(cluster.get("jobs", name), "Suspended"))
    cluster.patch(name, {"spec": {"activeDeadlineSeconds": 0, "suspend": False}})
    job = cluster.ended(name)
    assert condition(job, "Failed")["reason"] == "DeadlineExceeded"
    assert not job["status"].get("succeeded")
    assert cluster.pods(name) == []


def test_deadline_of_a_pod(cluster, gate):
    """activeDeadlineSeconds of a pod ends that one attempt: Failed, reason DeadlineExceeded.

    https://kubernetes.io/docs/concepts/workloads/pods/init-containers/
    """
    deadline = {"activeDeadlineSeconds": 1}
    job = cluster.run(cluster.indexed(gate[0], 1, backoffLimitPerIndex=0, pod=deadline))
    assert condition(job, "Failed")["reason"] == "FailedIndexes"
    [pod] = cluster.pods(job["metadata"]["name"])
    assert (pod["status"]["phase"], pod["status"]["reason"]) == ("Failed", "DeadlineExceeded")
    assert (
        pod["status"]["message"] == "Pod was active on the node longer than the specified deadline"
    )


def test_a_job_that_begins_suspended(cluster):
    """Suspended at creation a Job has no pods and no start time, until it is resumed.

    https://kubernetes.io/docs/concepts/workloads/controllers/job/#suspending-a-job
    """
    name = cluster.create(cluster.indexed("true", 2, suspend=True))
    suspended = cluster.until(lambda: condition(cluster.get("jobs", name), "Suspended"))
    assert (suspended["status"], suspended["reason"]) == ("True", "JobSuspended")
    assert "startTime" not in cluster.get("jobs", name)["status"]
    assert cluster.pods(name) == []
    cluster.patch(name, {"spec": {"suspend": False}})
    job = cluster.ended(name)
    assert condition(job, "Suspended")["status"] == "False"
    assert condition(job, "Suspended")["reason"] == "JobResumed"
    assert job["status"]["startTime"]


def test_a_running_job_that_is_suspended(cluster, gate):
    """Its pods are deleted, which is no failure; resumed it begins again.

    https://kubernetes.io/docs/concepts/workloads/controllers/job/#suspending-a-job
    """
    name = cluster.create(cluster.indexed(gate[0], 2, backoffLimitPerIndex=0))
    cluster.running(name, 2)
    cluster.patch(name, {"spec": {"suspend": True}})
    cluster.until(lambda: cluster.pods(name) == [])
    cluster.until(lambda: "startTime" not in cluster.get("jobs", name)["status"])
    assert not cluster.get("jobs", name)["status"].get("failed")
    gate[1]()
    cluster.patch(name, {"spec": {"suspend": False}})
    assert cluster.ended(name)["status"]["succeeded"] == 2


def test_time_to_live(cluster):
    """ttlSecondsAfterFinished deletes a Job that has ended, and its pods.

    https://kubernetes.io/docs/concepts/workloads/controllers/ttlafterfinished/
    """
    name = cluster.create(cluster.job("true", ttlSecondsAfterFinished=0))
    cluster.until(lambda: cluster.ask("GET", cluster.path("jobs", name)).status == 404)
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


def test_success_of_one_index_can_be_that_of_all(cluster, gate):
    """successPolicy: an index's success ends the Job, and the other pods.

    https://kubernetes.io/docs/concepts/workloads/controllers/job/#success-policy
    """
    script = f"test $JOB_COMPLETION_INDEX = 0 || {{ {gate[0]}; }}"
    policy = {"rules": [{"succeededIndexes": "0"}]}
    job = cluster.run(cluster.indexed(script, 2, successPolicy=policy))
    assert ending(job) == "Complete"
    assert condition(job, "SuccessCriteriaMet")["reason"] == "SuccessPolicy"
    assert job["status"]["completedIndexes"] == "0"


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
