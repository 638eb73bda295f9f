"""Blocked jobs, from recorded texts: each row of the table has an example."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from farcall.backends.kubernetes import describe
from farcall.backends.kubernetes.blocked import BLOCKED, Heals, row_of
from farcall.backends.kubernetes.failure_reasons import failure_reason
from farcall.model import errors
from farcall.model.timing import Timing
from tests.unit.backends.kubernetes.objects import condition, event, job, pod, unscheduled
from tests.unit.backends.kubernetes.test_failure_reasons import ended


class Waits(NamedTuple):
    """Waiting job, as a cluster returns it.

    Attributes:
        heals: Whether the problem may pass without a change.
        error: Class of the error if the job is terminated because of it.
        remedy: Words of the remedy, which identify the row.
        job: The Job.
        pods: Its pods.
        events: Events, and objects of queues.
    """

    heals: Heals
    error: type[errors.FarcallError]
    remedy: str
    job: dict[str, Any]
    pods: tuple[Any, ...] = ()
    events: tuple[dict[str, Any], ...] = ()

    @property
    def detail(self):
        return describe.Description(self.job, self.events).whole(self.pods)


def starting(reason: str, message: str = ""):
    return job(active=1), (pod("Pending", waiting={"reason": reason, "message": message}),)


def placing(message: str):
    return job(active=1), (unscheduled(message),)


def making(message: str):
    return job(), (), (event("FailedCreate", f"Error creating: {message}"),)


def held(message: str, reason: str = "WaitingForQuota", *others: dict[str, Any], active=True):
    """Return a suspended Job, with its Workload in Kueue's order of conditions."""
    conditions = [
        *others,
        condition("QuotaReserved", reason, message, "False"),
        condition("Admitted", "NoReservation", "The workload has no reservation", "False"),
    ]
    workload = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "spec": {"queueName": "nightly", "active": active},
        "status": {"conditions": conditions},
    }
    return job(suspend=True), (), (workload,)


def mounting(message: str, reason: str):
    found = pod("Pending", waiting={"reason": "ContainerCreating"})
    return job(active=1), (found,), (event("Scheduled", "x"), event(reason, message))


CONFIG = "CreateContainerConfigError"
PULLS = [
    ("image_pull_secrets", "pull access denied, repository does not exist"),
    ("copy the image", "unexpected status: 429 Too Many Requests"),
    ("architecture", "no match for platform in manifest: not found"),
    ("remove images", "write /var/lib/x: no space left on device"),
    ("registry, repository and tag", "manifest unknown"),
    ("can reach the registry", "dial tcp: lookup registry: no such host"),
]
STARTS = [
    ("check the image", "InvalidImageName", "invalid reference format"),
    ("imagePullPolicy", "ErrImageNeverPull", "Container image is not present"),
    ("s3_secret", CONFIG, 'secret "farcall-s3" not found'),
    ("correct its name in pod_overlay", CONFIG, 'configmap "x" not found'),
    ("USER 10001", CONFIG, "container has runAsNonRoot and image will run as root (pod: x)"),
    ("mounts", "CreateContainerError", "stat /dev/nothing: no such file"),
    ("entry point", "RunContainerError", "failed to create containerd task"),
    ("set architecture", "RunContainerError", 'exec "/entry": exec format error'),
]
PLACES = [
    ("claims in mounts", 'persistentvolumeclaim "data" not found.'),
    ("fewer nodes", "3/3 tasks in gang unschedulable: pod group is not ready, 3 Pending"),
    ("vcpu, memory, num_gpus", "1 node(s) had untolerated taint, 2 Insufficient cpu."),
    ("tolerations", "3 node(s) had untolerated taint {gpu: true}."),
    ("node_selector", "3 node(s) didn't match Pod's node affinity/selector."),
    ("wait", "no nodes available"),
]
CREATIONS = [
    (Heals.OFTEN, "max_parallel", "exceeded quota: q, requested: limits.memory=8Gi, used: 0"),
    (
        Heals.SOMETIMES,
        "request more",
        "minimum memory usage per Container is 100Mi, but request is 64Mi",
    ),
    (Heals.SOMETIMES, "service_account", "error looking up service account: not found"),
    (Heals.SOMETIMES, "priority_class", "no PriorityClass with name high was found"),
    (Heals.SOMETIMES, "bind and device", 'violates PodSecurity "restricted:latest": hostPath'),
    (
        Heals.SOMETIMES,
        '"allowPrivilegeEscalation": false',
        'violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false',
    ),
    (Heals.SOMETIMES, "settings that the message names", "denied the request: no owner"),
]
WAITING = [
    *(
        Waits(
            Heals.SOMETIMES, errors.ImageError, remedy, *starting("ErrImagePull", f"x:1: {text}")
        )
        for remedy, text in PULLS
    ),
    *(
        Waits(Heals.NEVER, errors.ImageError, remedy, *starting(reason, text))
        for remedy, reason, text in STARTS
    ),
    *(
        Waits(Heals.SOMETIMES, errors.ImageError, remedy, *starting(reason, text))
        for remedy, reason, text in (
            ("image_pull_secrets", "ImagePullBackOff", 'Back-off pulling image "x:1"'),
            ("", "CreateContainerError", 'failed to reserve container name "task_x"'),
            ("", "CreateContainerError", "context deadline exceeded"),
        )
    ),
    *(
        Waits(Heals.SOMETIMES, error, remedy, *mounting(text, reason))
        for error, remedy, text, reason in (
            (errors.ImageError, "in the job's namespace", 'secret "x" not found', "FailedMount"),
            (errors.ImageError, "a claim must be", "Multi-Attach error", "FailedAttachVolume"),
            (errors.HostLostError, "network plugin", "plugin type", "FailedCreatePodSandBox"),
        )
    ),
    *(
        Waits(Heals.OFTEN, errors.JobStuckError, remedy, *placing(f"0/3 nodes available: {text}"))
        for remedy, text in PLACES
    ),
    *(
        Waits(heals, errors.JobStuckError, remedy, *making(f'pods "x" is forbidden: {text}'))
        for heals, remedy, text in CREATIONS
    ),
    Waits(
        Heals.SOMETIMES,
        errors.JobStuckError,
        "Kubernetes tries again",
        *making("stream error: stream ID 7; INTERNAL_ERROR; received from peer"),
    ),
    Waits(
        Heals.OFTEN,
        errors.JobStuckError,
        "another LocalQueue",
        *held(
            "couldn't assign flavors to pod set main: insufficient quota for cpu in flavor "
            "any-node, previously considered podsets requests (0) + current podset request (20) > "
            "maximum capacity (10)"
        ),
    ),
    Waits(
        Heals.OFTEN,
        errors.JobStuckError,
        "another LocalQueue",
        *held("ClusterQueue science is inactive", "Inadmissible"),
    ),
    Waits(
        Heals.OFTEN,
        errors.JobStuckError,
        "spec.active",
        *held(
            "couldn't assign flavors",
            "Pending",
            condition("Evicted", "Deactivated", "The workload is deactivated"),
            active=False,
        ),
    ),
]


@pytest.mark.parametrize("each", WAITING)
def test_blocked_job_is_explained_with_remedy(each):
    detail = each.detail
    assert not detail.status.is_final
    assert detail.is_blocked
    row = row_of(detail)
    assert row is not None
    assert (row.heals, row.failure_reason.kind) == (each.heals, each.error)
    sentence, remedy = detail.waiting()
    assert detail.reason in sentence
    assert remedy == detail.remedy
    assert each.remedy in remedy


@pytest.mark.parametrize("each", WAITING)
def test_termination_of_blocked_job_is_explained(each):
    reason = f"stuck for 180 s: {each.detail.reason}"
    found = failure_reason(describe.Description(ended(reason)).whole(()))
    assert found.kind is each.error
    assert each.remedy in found.remedy


@pytest.mark.parametrize("each", WAITING)
def test_grace_period_depends_on_problem(each):
    timing = Timing()
    told_s, ended_s = each.detail.dwell(timing)
    expected = {
        Heals.OFTEN: (timing.blocked_report_s, None),
        Heals.SOMETIMES: (timing.blocked_report_s, timing.pull_dwell_s),
        Heals.NEVER: (0, timing.start_dwell_s),
    }
    assert (told_s, ended_s) == expected[each.heals]


def test_each_blocked_row_has_example():
    found = {id(row_of(each.detail)) for each in WAITING}
    assert [row.failure_reason.sentence for row in BLOCKED if id(row) not in found] == []
