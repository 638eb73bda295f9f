"""Each failure from recorded texts of API servers, schedulers and kubelets.

The texts are from the Kubernetes documentation and source, and from user reports.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from farcall.backends.base import Runtime
from farcall.backends.kubernetes import describe
from farcall.backends.kubernetes.blocked import BLOCKED
from farcall.backends.kubernetes.failure_reasons import COMMAND_ENDINGS, ENDINGS, failure_reason
from farcall.backends.kubernetes.pods import Pod, read_pod
from farcall.model import errors, failure_reasons
from farcall.model.exit_codes import EXITS
from farcall.model.start_script import Fetched, wrap
from tests.unit.backends.kubernetes.objects import condition, job, pod

RUNTIME = Runtime("https://b.s3.r.amazonaws.com", "b", "r", "p/" + 64 * "0", "x86_64", "3.11")
FAILED = condition("Failed", "FailedIndexes", "Job has failed indexes")


class Recorded(NamedTuple):
    """Failure as a cluster reports it, and its expected explanation.

    Attributes:
        error: Class of the error.
        sentence: Words of the sentence about what happened, which identify the row.
        job: The Job.
        pods: Its pods.
        told: Words of the cluster that the error quotes.
        is_deleted: Whether the Job was deleted.
    """

    error: type[errors.FarcallError]
    sentence: str
    job: dict[str, Any]
    pods: tuple[Any, ...] = ()
    told: str = ""
    is_deleted: bool = False

    @property
    def detail(self):
        return describe.Description(self.job, is_deleted=self.is_deleted).whole(self.pods)


def failed(*conditions: dict[str, Any], **options: Any) -> dict[str, Any]:
    return job(1, *(conditions or (FAILED,)), failed=1, failedIndexes="0", **options)


def ended(reason: str, **options: Any) -> dict[str, Any]:
    deadline = condition(
        "Failed", "DeadlineExceeded", "Job was active longer than specified deadline"
    )
    return job(1, deadline, annotations={"farcall/reason": f"farcall: {reason}"}, **options)


def ending(*args: Any, **options: Any) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """Return a failed Job, and its pod with these options."""
    return failed(), (pod(*args, **options),)


def lost(reason: str, message: str) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """Return a failed Job whose pod was disrupted."""
    return ending(conditions=(condition("DisruptionTarget", reason, message),), exit_code=143)


def stuck(words: str) -> dict[str, Any]:
    return ended(f"stuck for 180 s: {words}")


def exited(code: int, **options: Any) -> tuple[dict[str, Any], tuple[Any, ...]]:
    return failed(**options), (pod(exit_code=code),)


def initialized(code: int) -> Pod:
    """Return the pod whose init container failed; its own container never started."""
    status = {
        "phase": "Failed",
        "initContainerStatuses": [
            {
                "name": "setup",
                "image": "busybox:1",
                "state": {"terminated": {"exitCode": code, "reason": "Error"}},
            }
        ],
        "containerStatuses": [
            {"name": "task", "state": {"waiting": {"reason": "PodInitializing"}}}
        ],
    }
    index = {"batch.kubernetes.io/job-completion-index": "0"}
    return read_pod({"metadata": {"name": "a-0-x", "annotations": index}, "status": status})


RECORDED = [
    # users
    Recorded(
        errors.JobCancelledError,
        "was cancelled",
        ended("cancelled by its owner"),
        told="cancelled by its owner",
    ),
    Recorded(
        errors.JobCancelledError,
        "another call of its map raised",
        ended("map failed: 3 of 100 raised ValueError; 95 were cancelled because of it"),
    ),
    Recorded(
        errors.JobStuckError,
        "no instance came for the job within queue_patience",
        ended(f"{failure_reasons.NO_INSTANCE}600 s (queue_patience)"),
    ),
    Recorded(
        errors.JobCancelledError,
        "appeared after its request was withdrawn",
        ended(failure_reasons.WITHDRAWN),
    ),
    Recorded(
        errors.JobCancelledError,
        "the Job was deleted",
        job(1, active=1),
        (pod("Running", running=True),),
        is_deleted=True,
    ),
    Recorded(
        errors.JobCancelledError, "the pod was deleted", *ending(exit_code=143, deleting=True)
    ),
    Recorded(
        errors.JobCancelledError,
        "the pod was deleted",
        failed(),
        (pod("Running", running=True).deleted(),),
    ),
    Recorded(errors.JobCancelledError, "task was cancelled", *exited(59)),
    # time limits
    Recorded(
        errors.JobTimeoutError,
        "Kubernetes terminated it",
        *ending(
            reason="DeadlineExceeded",
            message="Pod was active on the node longer than the specified deadline",
        ),
        told="Pod was active on the node longer than the specified deadline",
    ),
    Recorded(
        errors.JobTimeoutError,
        "farcall did not set",
        job(
            1,
            condition(
                "Failed", "DeadlineExceeded", "Job was active longer than specified deadline"
            ),
        ),
        (pod(exit_code=143, deleting=True, stopped=55),),
    ),
    Recorded(
        errors.JobError,
        "too many tasks",
        job(
            1,
            condition(
                "Failed",
                "MaxFailedIndexesExceeded",
                "Job has exceeded the specified maximal number",
            ),
        ),
    ),
    # memory and disk
    Recorded(
        errors.OutOfMemoryError,
        "ran out of memory",
        *ending(exit_code=137, container_reason="OOMKilled"),
        told="OOMKilled",
    ),
    Recorded(
        errors.OutOfMemoryError,
        "ran out of memory",
        *ending(exit_code=1, container_reason="OOMKilled"),
    ),
    Recorded(
        errors.OutOfMemoryError,
        "volume of the pod",
        *ending(
            reason="Evicted",
            message='Usage of EmptyDir volume "shared-memory" exceeds the limit "1Gi". ',
        ),
    ),
    Recorded(
        errors.DiskFullError,
        "was full",
        *ending(
            reason="Evicted",
            message="The node was low on resource: ephemeral-storage. Threshold quantity: "
            "10120387530, available: 9Gi. ",
        ),
    ),
    # lost nodes
    Recorded(
        errors.HostLostError,
        "ran out of a resource",
        *ending(reason="Evicted", message="The node was low on resource: memory. "),
        told="low on resource: memory",
    ),
    Recorded(
        errors.HostLostError,
        "higher priority",
        *lost(
            "PreemptionByScheduler",
            "default-scheduler: preempting to accommodate a higher priority pod",
        ),
    ),
    Recorded(
        errors.HostLostError,
        "preempted",
        *ending(reason="Preempting", message="Preempted in order to admit critical pod"),
    ),
    Recorded(
        errors.HostLostError,
        "job's node was lost",
        *lost("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"),
    ),
    Recorded(
        errors.HostLostError,
        "job's node was lost",
        *ending(reason="NodeLost", message="Node node-1 which was running pod x is unresponsive"),
    ),
    Recorded(
        errors.HostLostError,
        "no longer exists",
        *lost("DeletionByPodGC", "PodGC: node no longer exists"),
    ),
    Recorded(
        errors.HostLostError, "drained", *lost("EvictionByEvictionAPI", "Eviction API: evicting")
    ),
    Recorded(
        errors.HostLostError,
        "shut down",
        *ending(
            reason="Terminated",
            message="Pod was terminated in response to imminent node shutdown.",
            exit_code=143,
        ),
    ),
    Recorded(
        errors.HostLostError,
        "shut down",
        *lost("TerminationByKubelet", "The kubelet was terminating it"),
    ),
    Recorded(
        errors.HostLostError,
        "rejected it",
        *ending(
            reason="OutOfcpu",
            message="Node didn't have enough resource: cpu, requested: 2000, used: 3500",
        ),
    ),
    Recorded(
        errors.HostLostError,
        "a node of the job was evicted",
        job(
            1,
            condition(
                "Failed",
                "PodFailurePolicy",
                "Pod sim/simulate-0a1b-1-x has condition DisruptionTarget matching FailJob rule "
                "at index 0",
            ),
            command=True,
        ),
    ),
    Recorded(
        errors.JobError,
        "failure policy",
        job(
            1,
            condition(
                "Failed",
                "PodFailurePolicy",
                "Container task for pod sim/simulate-0a1b-0-x failed with exit code 3 matching "
                "FailJob rule at index 1",
            ),
        ),
    ),
    # what blocked it until it was terminated
    Recorded(
        errors.JobStuckError,
        "no node of the cluster",
        ended(
            "stuck for 300 s: Unschedulable: 0/3 nodes are available: 3 Insufficient memory. "
            "preemption: 0/3 nodes are available: 3 No preemption victims found"
        ),
        told="3 Insufficient memory",
    ),
    Recorded(
        errors.JobStuckError,
        "could not be placed for stuck_timeout_s",
        ended("stuck for 300 s: SomethingNew"),
    ),
    Recorded(
        errors.ImageError,
        "does not exist in the registry",
        stuck(
            'ErrImagePull: failed to pull and unpack image "x:1": failed to resolve reference: '
            "x:1: not found"
        ),
        told="not found",
    ),
    # the container
    Recorded(
        errors.ImageError,
        "an init container of the pod failed",
        failed(),
        (initialized(9),),
        told="exit code 9 (init container setup, image busybox:1; kubectl logs a-0-x -c setup)",
    ),
    Recorded(
        errors.ImageError,
        "could not be started",
        *ending(
            exit_code=128,
            container_reason="StartError",
            container_message="failed to create containerd task: OCI runtime create failed",
        ),
    ),
    Recorded(
        errors.ImageError,
        "another architecture",
        *ending(
            exit_code=128,
            container_reason="StartError",
            container_message='exec: "python": exec format error',
        ),
    ),
    Recorded(
        errors.ImageError,
        "could not be started",
        *ending(exit_code=127, container_reason="ContainerCannotRun", container_message="x"),
    ),
    Recorded(errors.JobError, "pods no longer exist", failed()),
    Recorded(
        errors.JobError,
        "pods no longer exist",
        job(1, condition("Failed", "BackoffLimitExceeded", "Job has reached the backoff limit")),
    ),
    Recorded(errors.JobError, "stored no result in the bucket (exit code 7)", *exited(7)),
    Recorded(
        errors.JobError,
        "a task of the job failed",
        job(4, FAILED, failedIndexes="1", completedIndexes="0,2,3"),
    ),
    Recorded(
        errors.OutcomeMissingError,
        "succeeded, but its result is not in",
        job(1, condition("Complete"), completedIndexes="0"),
        (pod("Succeeded", exit_code=0),),
    ),
    *(Recorded(found.kind, found.sentence, *exited(code)) for code, found in EXITS.items()),
    *(
        Recorded(kind, "", *exited(code, runtime=RUNTIME))
        for code, kind in (
            (64, errors.ImageError),
            (65, errors.OutcomeMissingError),
            (66, errors.IntegrityError),
            (67, errors.VersionMismatchError),
            (73, errors.OutcomeMissingError),
            (74, errors.OutcomeMissingError),
            (75, errors.DiskFullError),
            *((code, errors.ImageError) for code in (1, 126, 127)),
        )
    ),
]


@pytest.mark.parametrize("each", RECORDED)
def test_failure_is_named_with_quoted_reason(each):
    detail = each.detail
    assert detail.status.is_final
    found = failure_reason(detail)
    assert found.kind is each.error
    assert each.sentence in found.sentence
    assert each.told in detail.platform_reason
    assert "{" not in found.remedy


COMMAND = ("sh", "-c", "exit 3")
WORKSPACE = tuple(
    wrap(COMMAND, Fetched("r", "https://b.s3.r.amazonaws.com", "b", "k", 64 * "0", "."))
)
COMMANDS = [
    (errors.CommandError, "command failed (exit code 3)", pod(exit_code=3), COMMAND),
    (errors.CommandError, "not found in the image", pod(exit_code=127), COMMAND),
    (errors.CommandError, "not found in the image", pod(exit_code=126), COMMAND),
    (
        errors.CommandError,
        "not found in the image",
        pod(
            exit_code=128,
            container_reason="StartError",
            container_message='exec: "nothing": executable file not found in $PATH: unknown',
        ),
        COMMAND,
    ),
    (errors.OutOfMemoryError, "SIGKILL", pod(exit_code=137), COMMAND),
    (errors.HostLostError, "SIGTERM", pod(exit_code=143), COMMAND),
    (
        errors.OutOfMemoryError,
        "memory",
        pod(exit_code=137, container_reason="OOMKilled"),
        COMMAND,
    ),
    (errors.JobError, "pods no longer exist", None, COMMAND),
    (
        errors.ImageError,
        "lacks the tools to download its workspace",
        pod(exit_code=80),
        WORKSPACE,
    ),
    (errors.ImageError, "no credentials", pod(exit_code=81), WORKSPACE),
    (errors.CommandError, "could not download its workspace", pod(exit_code=82), WORKSPACE),
    (
        errors.IntegrityError,
        "differs from the one that was uploaded",
        pod(exit_code=83),
        WORKSPACE,
    ),
    (errors.CommandError, "could not unpack", pod(exit_code=84), WORKSPACE),
    (errors.CommandError, "command failed (exit code 80)", pod(exit_code=80), COMMAND),
]


def command_detail(found, command):
    detail = describe.Description(failed(command=True)).whole((found,) if found else ())
    return replace(detail, command=command)


@pytest.mark.parametrize(("error", "sentence", "found", "command"), COMMANDS)
def test_command_failure_is_explained(error, sentence, found, command):
    detail = command_detail(found, command)
    explanation = failure_reason(detail)
    assert explanation.kind is error
    assert sentence in explanation.sentence


# --- each row of the tables has an example ----------------------------------------------------


def test_each_failure_row_has_example():
    seen = set()
    for each in RECORDED:
        detail = each.detail
        seen |= {id(row) for row in ENDINGS if row.fits(detail)}
    blocking = {id(row.failure_reason) for row in BLOCKED}
    unseen = [
        row for row in ENDINGS if id(row) not in seen and id(row.failure_reason) not in blocking
    ]
    assert [row.failure_reason.sentence for row in unseen] == []


def test_each_command_row_has_example():
    hit = set()
    for _, _, found, command in COMMANDS:
        detail = command_detail(found, command)
        hit.add(id(next(row for row in COMMAND_ENDINGS if row.fits(detail))))
    common = {id(row) for row in ENDINGS}
    unseen = [row for row in COMMAND_ENDINGS if id(row) not in hit | common]
    assert [row.failure_reason.sentence for row in unseen] == []
