"""Volcano jobs: the effect of failures, termination, and reading their end."""

import pytest

from farcall import Settings
from farcall.backends.base import JobSpec
from farcall.backends.kubernetes import volcano
from farcall.backends.kubernetes.documents import KubernetesJob
from farcall.model.commands import ENV_RUN, Nodes
from tests.support import volcano_schema


def policies(*, is_command=True, **options):
    settings = Settings(backend="kubernetes", scheduler="volcano", nodes=2, **options)
    groups = (Nodes(1, "a"), Nodes(1, "b")) if is_command else ()
    bundle = {"FARCALL_BUNDLE": "s3://b/v1/run/bundles/0"}
    job = JobSpec("one-0a1b", 1, {ENV_RUN: "run", **({} if groups else bundle)}, settings, groups)
    (document,) = KubernetesJob(job, "image").objects()
    return document["spec"]["policies"]


def action(found, *, event="PodFailed", code=1):
    """Return Volcano's action: that of the first policy that matches."""
    for policy in found:
        if policy.get("event") == event or policy.get("exitCode") == code:
            return policy["action"]
    return "SyncJob"


def test_single_attempt_keeps_failed_pods():
    found = policies(retry_attempts=1)
    assert action(found) == action(found, event="PodEvicted", code=0) == "TerminateJob"


@pytest.mark.parametrize(
    ("code", "of_command", "of_task"),
    [
        (1, "RestartJob", "RestartJob"),
        (64, "RestartJob", "TerminateJob"),
        (59, "RestartJob", "TerminateJob"),
        (137, "TerminateJob", "TerminateJob"),
        (143, "RestartJob", "RestartJob"),
    ],
)
def test_failures_are_retried_unless_final(code, of_command, of_task):
    asked = {"retry_attempts": 2, "retry_on": "failure"}
    assert action(policies(**asked), code=code) == of_command
    assert action(policies(is_command=False, **asked), code=code) == of_task


def test_pod_knows_number_of_failed_attempts():
    job = JobSpec(
        "one-0a1b",
        1,
        {"FARCALL_BUNDLE": "s3://b/v1/run/bundles/0"},
        Settings(backend="kubernetes", scheduler="volcano", nodes=2, retry_attempts=2),
    )
    (document,) = KubernetesJob(job, "image").objects()
    (container,) = document["spec"]["tasks"][0]["template"]["spec"]["containers"]
    (found,) = (each for each in container["env"] if each["name"] == "FARCALL_FAILED_ATTEMPTS")
    path = found["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == "metadata.annotations['volcano.sh/job-retry-count']"


def test_abort_command_names_job_uid():
    job = {"metadata": {"name": "one", "namespace": "team", "uid": "u-1"}}
    command = volcano.command(job)
    assert volcano_schema.faults(command) == []
    assert (command["action"], command["target"]["name"], command["target"]["uid"]) == (
        "AbortJob",
        "one",
        "u-1",
    )


def volcano_job(phase, **status):
    state = {"phase": phase, "lastTransitionTime": "2026-11-23T21:00:00Z"}
    tasks = [
        {"name": "n0", "replicas": 1, "template": {"spec": {}}},
        {"name": "n1", "replicas": 2},
    ]
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "metadata": {"name": "one"},
        "spec": {"tasks": tasks, "maxRetry": 2},
        "status": {"state": state, **status},
    }


@pytest.mark.parametrize(
    ("phase", "condition"),
    [
        ("Pending", None),
        ("Running", None),
        ("Restarting", None),
        ("Aborting", None),
        ("Completing", "SuccessCriteriaMet"),
        ("Terminating", "FailureTarget"),
        ("Completed", "Complete"),
        ("Failed", "Failed"),
        ("Terminated", "Failed"),
        ("Aborted", "Failed"),
    ],
)
def test_phase_becomes_job_condition(phase, condition):
    job = volcano_job(phase)
    assert volcano.is_one(job)
    read = volcano.as_job(job)
    assert [each["type"] for each in read["status"]["conditions"]] == (
        [condition] * bool(condition)
    )
    assert (read["spec"]["completions"], read["spec"]["backoffLimit"]) == (3, 1)
