"""Pod states."""

from farcall.backends.kubernetes.pods import POD_DELETED as DELETED
from farcall.backends.kubernetes.pods import read_pod
from tests.unit.backends.kubernetes.objects import at, condition, pod


def test_container_that_never_started_has_no_start():
    """The runtime reports the epoch as its start."""
    over = {"exitCode": 128, "reason": "StartError", "startedAt": "1970-01-01T00:00:00Z"}
    status = {"containerStatuses": [{"name": "task", "state": {"terminated": over}}]}
    found = read_pod({"status": {"phase": "Failed", **status}})
    assert (found.exit_code, found.started_at) == (128, None)


def test_deletion_after_end_keeps_exit():
    """The deletion began at its timestamp minus the grace period."""
    document = {
        "metadata": {"deletionTimestamp": at(70), "deletionGracePeriodSeconds": 30},
        "status": {
            "phase": "Failed",
            "containerStatuses": [
                {"name": "task", "state": {"terminated": {"exitCode": 137, "finishedAt": at(39)}}}
            ],
        },
    }
    assert read_pod(document).deleted().as_attempt().status_reason == ""
    document["metadata"]["deletionTimestamp"] = at(69)
    assert read_pod(document).deleted().as_attempt().status_reason == DELETED


def test_failed_pod_settles_with_its_reason():
    assert not pod().is_settled
    assert pod(exit_code=1).is_settled
    assert pod(reason="Evicted").is_settled
    assert pod(conditions=(condition("DisruptionTarget", "X"),)).is_settled
    assert pod().deleted().is_settled
    assert pod("Running", running=True).is_settled


def test_deleted_pod_reports_deletion_unless_ended():
    assert pod("Running", running=True).deleted().as_attempt().status_reason == DELETED
    assert pod(exit_code=143, deleting=True).as_attempt().status_reason == DELETED
    assert pod(exit_code=1).deleted().as_attempt().status_reason == ""


def test_sidecar_container_is_ignored():
    sidecar = {"name": "istio-proxy", "state": {"terminated": {"exitCode": 5, "reason": "Error"}}}
    own = {"name": "task", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
    found = read_pod({"status": {"phase": "Failed", "containerStatuses": [sidecar, own]}})
    assert (found.exit_code, found.container_reason) == (0, "")


def test_native_sidecar_is_ignored():
    """A native sidecar stops last, and its exit code is not the task's."""
    spec = {"initContainers": [{"name": "mesh", "restartPolicy": "Always"}]}
    sidecar = {"name": "mesh", "state": {"terminated": {"exitCode": 143, "reason": "Error"}}}
    killed = {"exitCode": 137, "reason": "OOMKilled"}
    status = {"phase": "Failed", "initContainerStatuses": [sidecar]}
    status["containerStatuses"] = [{"name": "task", "state": {"terminated": killed}}]
    found = read_pod({"spec": spec, "status": status})
    assert (found.exit_code, found.container_reason) == (137, "OOMKilled")
    status["containerStatuses"][0]["state"] = {"waiting": {"reason": "PodInitializing"}}
    assert read_pod({"spec": spec, "status": status}).exit_code is None
