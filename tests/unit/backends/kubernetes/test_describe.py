import json

import pytest

from farcall.backends.kubernetes import describe
from farcall.backends.kubernetes.pods import read_pod
from farcall.model.errors import JobCancelledError
from farcall.model.jobs import Attempt, JobStatus
from tests.unit.backends.kubernetes.objects import (
    IMAGE,
    NAME,
    condition,
    event,
    job,
    pod,
    unscheduled,
)

FAILED = condition("Failed", "FailedIndexes", "Job has failed indexes")
OURS = {"farcall/reason": "farcall: cancelled by ann"}
BY_DEADLINE = condition("Failed", "DeadlineExceeded", "Job was active longer than the deadline")
WAITING = pod("Pending", waiting={"reason": "ContainerCreating"})


@pytest.mark.parametrize(
    ("document", "pods", "status"),
    [
        (job(), (), JobStatus.SUBMITTED),
        (job(suspend=True), (), JobStatus.RUNNABLE),
        (job(active=1), (unscheduled("no"),), JobStatus.RUNNABLE),
        (job(active=1), (unscheduled("gates", "SchedulingGated"),), JobStatus.RUNNABLE),
        (job(active=1), (WAITING,), JobStatus.STARTING),
        (job(active=1, ready=1), (pod("Running", running=True),), JobStatus.RUNNING),
        (job(active=1), (pod("Unknown", running=True),), JobStatus.RUNNING),
        # The pod has ended, but its Job does not show the consequence yet.
        (job(active=1), (pod("Succeeded", exit_code=0),), JobStatus.SUCCEEDED),
        (job(), (pod(exit_code=143),), JobStatus.RUNNABLE),
        (job(1, failedIndexes="0"), (pod(exit_code=1),), JobStatus.FAILED),
        (job(1, condition("SuccessCriteriaMet")), (), JobStatus.SUCCEEDED),
        (job(1, condition("Complete"), completedIndexes="0"), (), JobStatus.SUCCEEDED),
        (job(1, condition("FailureTarget", "FailedIndexes", "x")), (), JobStatus.FAILED),
        (job(1, FAILED), (), JobStatus.FAILED),
        (job(1, condition("Failed", status="False")), (), JobStatus.SUBMITTED),
    ],
)
def test_task_status_is_read(document, pods, status):
    assert describe.Description(document).whole(pods).status is status
    assert describe.Description(document).task(0, pods).status is status


DISRUPTED = (condition("DisruptionTarget", "X"),)


@pytest.mark.parametrize(
    ("options", "failed", "is_final"),
    [
        ({"retry_attempts": 1}, pod(exit_code=143), True),
        ({"retry_attempts": 1}, pod(exit_code=143, deleting=True), False),
        ({"retry_attempts": 1}, pod(exit_code=143).deleted(), False),
        ({"retry_attempts": 1}, pod(reason="Evicted"), True),
        ({"retry_attempts": 3}, pod(exit_code=1), True),
        ({"retry_attempts": 3}, pod(exit_code=143), False),
        ({"retry_attempts": 3}, pod(exit_code=143, attempt=3), True),
        ({"retry_attempts": 3}, pod(exit_code=137, conditions=DISRUPTED), False),
        ({"retry_attempts": 3}, pod(exit_code=137, attempt=3, conditions=DISRUPTED), False),
        ({"retry_attempts": 3}, pod(reason="Evicted"), False),
        ({"retry_attempts": 3}, pod(), False),  # its reason is not known yet
        ({"retry_attempts": 3, "retry_on": "failure"}, pod(exit_code=1), False),
        ({"retry_attempts": 3, "retry_on": "failure"}, pod(exit_code=66), True),
        ({"retry_attempts": 3, "retry_on": "failure"}, pod(exit_code=137), True),
    ],
)
def test_last_attempt_is_final_immediately(options, failed, is_final):
    found = describe.Description(job(2, options=options, active=1)).task(0, (failed,))
    assert found.status is (JobStatus.FAILED if is_final else JobStatus.RUNNABLE)


def test_suspended_job_continues_after_last_attempt():
    document = job(options={"retry_attempts": 1}, suspend=True)
    assert describe.Description(document).whole((pod(exit_code=143),)).status is JobStatus.RUNNABLE


def test_suspension_is_no_attempt():
    """A suspended Job deletes its pods without counting them, and later runs them again."""
    deleted = pod(exit_code=143, deleting=True, name="first").deleted()
    again = pod("Pending", name="second")
    assert describe.Description(job(suspend=True)).whole((deleted,)).attempts == 0
    assert describe.Description(job(active=1)).whole((deleted, again)).attempts == 0
    later = pod("Pending", attempt=2, name="second")
    assert describe.Description(job(active=1)).whole((deleted, later)).attempts == 1


def test_attempts_keep_their_numbers():
    """Deleted pods leave empty attempts."""
    pods = (
        pod(exit_code=143, attempt=3, conditions=(condition("DisruptionTarget", "X", "y"),)),
        pod(exit_code=7, attempt=2),
        pod("Running", attempt=4, running=True),
    )
    found = describe.Description(job(active=1)).whole(pods)
    assert found.attempts == 3
    assert found.tried[0] == Attempt()
    assert [each.exit_code for each in found.tried[1:]] == [7, 143]
    assert found.tried[2].status_reason == "X: y"
    assert found.attempts_allowed == 4  # three, and one more for the disruption
    assert found.log_stream == pods[2].name
    assert found.status is JobStatus.RUNNING


def test_attempts_without_pods_are_unknown():
    """A pod that never ran also counts as failed when the controller deletes it."""
    ended = job(1, condition("Failed", "DeadlineExceeded", "past"), failed=2)
    assert describe.Description(ended).whole(()).has_lost_attempts
    assert not describe.Description(ended).whole((pod(exit_code=1),)).has_lost_attempts


NODE_CONTROLLERS = {"type": "Ready", "status": "False"}
KUBELETS = {**NODE_CONTROLLERS, "reason": "ContainersNotReady", "message": "unready: [task]"}


@pytest.mark.parametrize(
    ("conditions", "is_lost"),
    [
        ((NODE_CONTROLLERS,), True),
        ((KUBELETS,), False),
        ((KUBELETS, condition("DisruptionTarget", "DeletionByTaintManager", "Taint")), True),
    ],
)
def test_unresponsive_node_is_named(conditions, is_lost):
    running = pod("Running", running=True, conditions=conditions)
    task = describe.Description(job(active=1)).whole((running,))
    array = describe.Description(job(8, active=4, completedIndexes="4-7")).whole((running,))
    for found in (task, array):
        assert ("node node-1 does not respond" in found.waiting()[0]) is is_lost
        assert ("kubectl delete node node-1" in found.likely_cause) is is_lost
        assert (found.status is JobStatus.RUNNING) is (not is_lost and found is task)
    assert array.status_summary.get("RUNNABLE", 0) == is_lost


def test_waiting_init_container_is_the_reason():
    waits = {"waiting": {"reason": "ImagePullBackOff", "message": "m"}}
    status = {
        "phase": "Pending",
        "initContainerStatuses": [{"name": "setup", "image": "x:1", "state": waits}],
        "containerStatuses": [
            {"name": "task", "state": {"waiting": {"reason": "PodInitializing"}}}
        ],
    }
    blocked = read_pod({"status": status})
    assert blocked.container_reason == "ImagePullBackOff: m (init container setup, image x:1)"
    found = describe.Description(job(active=1)).whole((blocked,))
    assert found.remedy.startswith("check the image x:1 of init container setup")


def test_invalid_annotations_are_ignored():
    marks = {"batch.kubernetes.io/job-completion-index": "seven"}
    found = read_pod({"metadata": {"annotations": marks, "creationTimestamp": "yesterday"}})
    assert (found.index, found.created_at, found.attempt) == (None, None, 1)
    annotations = {"farcall/tags": "[1", "farcall/ended": "7", "farcall/options": "null"}
    document = job(2, annotations=annotations, failedIndexes="0")
    assert describe.Description(document).task(0, (pod(exit_code=1),)).status is JobStatus.FAILED
    assert describe.Description(document).whole(()).tags == {}
    assert describe.options(document) == {}


# --- maps ---------------------------------------------------------------------------------------


def summary(found):
    return dict(found.status_summary)


def test_map_counts_tasks_by_status():
    pods = (WAITING, unscheduled("no"))
    found = describe.Description(
        job(100, active=30, ready=10, completedIndexes="0-29,40", failedIndexes="31,33-34")
    ).whole(pods)
    assert found.status is JobStatus.PENDING
    assert found.array_size == 100
    assert summary(found) == {
        "SUBMITTED": 36,
        "RUNNABLE": 10,
        "STARTING": 10,
        "RUNNING": 10,
        "SUCCEEDED": 31,
        "FAILED": 3,
    }
    assert sum(summary(found).values()) == 100
    assert found.furthest is JobStatus.RUNNING


def test_finished_map_has_no_active_tasks():
    found = describe.Description(
        job(5, FAILED, completedIndexes="0,2-4", failedIndexes="1")
    ).whole(())
    assert found.status is JobStatus.FAILED
    assert summary(found) == {"SUCCEEDED": 4, "FAILED": 1}
    found = describe.Description(
        job(5, BY_DEADLINE, annotations=OURS, completedIndexes="0")
    ).whole(())
    assert summary(found) == {"SUCCEEDED": 1, "FAILED": 4}
    assert (found.status_reason, found.is_terminated) == (OURS["farcall/reason"], True)


def test_map_without_starts_is_blocked():
    pulling = pod("Pending", waiting={"reason": "ErrImagePull", "message": "not found"})
    found = describe.Description(job(100, active=100)).whole((pulling, pulling))
    assert found.is_blocked
    assert found.container_reason == "ErrImagePull: not found"
    assert not describe.Description(job(100, active=100, ready=1)).whole((pulling,)).is_blocked
    # A pod that is starting has not failed to start.
    assert not describe.Description(job(100, active=100)).whole((pulling, WAITING)).is_blocked


def test_events_count_only_without_pods():
    events = (event("FailedCreate", "exceeded quota", 5), event("FailedCreate", "newer", 9))
    assert describe.Description(job(5), events).whole(()).status_reason == "FailedCreate: newer"
    assert describe.Description(job(5, active=1, ready=1), events).whole(()).status_reason == ""


def test_array_tasks_have_their_own_status():
    document = job(4, completedIndexes="0", failedIndexes="2", active=1)
    pods = (pod(exit_code=1, index=2), pod("Running", 1, running=True))
    statuses = [describe.Description(document).task(index, pods).status for index in range(4)]
    assert statuses == [
        JobStatus.SUCCEEDED,
        JobStatus.RUNNING,
        JobStatus.FAILED,
        JobStatus.SUBMITTED,
    ]
    assert describe.Description(document).task(2, pods).job_id == f"{NAME}:2"
    assert describe.Description(document).task(4, pods) is None
    assert describe.Description(document).task(-1, pods) is None


def test_cancelled_array_task_has_reason():
    ended = {"farcall/ended": json.dumps({"2": "farcall: cancelled by ann"})}
    document = job(4, annotations=ended, failedIndexes="2,3", active=2)
    pods = (pod(exit_code=59, index=2, attempt=2), pod(exit_code=1, index=3))
    found = describe.Description(document).task(2, pods)
    assert (found.status_reason, found.is_terminated) == ("farcall: cancelled by ann", True)
    assert found.failure_reason().kind is JobCancelledError
    other = describe.Description(document).task(3, pods)
    assert (other.status_reason, other.is_terminated) == ("", False)


def test_tasks_ended_earlier_keep_their_reason():
    document = job(3, BY_DEADLINE, annotations=OURS, completedIndexes="0", failedIndexes="1-2")
    before = pod(reason="Evicted", message="m", index=1, exit_code=137, stopped=30)
    killed = pod(exit_code=143, index=2, deleting=True, stopped=52)
    assert describe.Description(document).task(0, ()).status is JobStatus.SUCCEEDED
    assert describe.Description(document).task(1, (before, killed)).status_reason == "Evicted: m"
    assert (
        describe.Description(document).task(2, (killed,)).status_reason == OURS["farcall/reason"]
    )


def test_deleted_job_keeps_known_task_results():
    document = job(3, completedIndexes="0", active=2)
    assert describe.Description(document, is_deleted=True).whole(()).status is JobStatus.FAILED
    assert (
        describe.Description(document, is_deleted=True).task(0, ()).status is JobStatus.SUCCEEDED
    )
    lost = describe.Description(document, is_deleted=True).task(1, ())
    assert lost.failure_reason().kind is JobCancelledError
    ended = job(1, FAILED, failedIndexes="0")
    done = describe.Description(ended, is_deleted=True).whole((pod(exit_code=1),))
    assert done.failure_reason().sentence.startswith("the container exited with an error")


def test_own_reason_survives_deletion():
    found = describe.Description(job(3, annotations=OURS), is_deleted=True).whole(())
    assert found.status_reason == OURS["farcall/reason"]


# --- several nodes ------------------------------------------------------------------------------


def gang(*conditions, nodes=3, **status):
    document = job(nodes, *conditions, command=True, **status)
    container = document["spec"]["template"]["spec"]["containers"][0]
    variables = {"FARCALL_NODE_COUNT": str(nodes), "A": "1"}
    container["env"] += [{"name": name, "value": value} for name, value in variables.items()]
    container["args"] = ["sh", "-c", "echo $$(hostname)"]
    return document


def test_nodes_of_one_group_are_read():
    found = describe.Description(gang(active=3)).whole(())
    assert (found.nodes, len(found.groups), found.array_size) == (3, 1, 0)
    assert found.groups[0].command == ("sh", "-c", "echo $(hostname)")
    assert found.groups[0].environment["A"] == "1"
    assert describe.Description(gang()).node(3, ()) is None
    running = (pod("Running", 1, running=True), pod("Pending", 2))
    statuses = [
        describe.Description(gang(active=3)).node(rank, running).status for rank in range(3)
    ]
    assert statuses == [JobStatus.SUBMITTED, JobStatus.RUNNING, JobStatus.STARTING]


def test_multi_node_status_is_read():
    """The status is the main node's, and the exit is the failed node's."""
    pods = (pod("Running", 0, running=True), pod("Pending", 1, placed=False))
    assert describe.Description(gang(active=2)).whole(pods).status is JobStatus.RUNNING
    culprit = pod(exit_code=3, index=2, stopped=45)
    message = (
        f"Container task for pod sim/{culprit.name} failed with exit code 3 matching FailJob rule "
        "at index 1"
    )
    end = condition("Failed", "PodFailurePolicy", message)
    pods = (pod(exit_code=143, index=0, deleting=True, stopped=44), culprit)
    found = describe.Description(gang(end)).whole(pods)
    assert found.status is JobStatus.FAILED
    assert (found.exit_code, found.log_stream) == (3, culprit.name)
    assert found.failure_reason().sentence == "the command failed (exit code 3)"
    assert found.status_reason == f"PodFailurePolicy: {message}"


def test_groups_of_several_objects_are_merged():
    main, later = gang(nodes=2), gang(nodes=1)
    later["metadata"]["labels"]["farcall/node"] = "2"
    later["spec"]["template"]["spec"]["containers"][0]["image"] = "other"
    found = describe.Description(main, parts=[later, main]).whole(())
    assert [(each.first, each.last, each.image) for each in found.groups] == [
        (0, 1, IMAGE),
        (2, 2, "other"),
    ]
    node = describe.Description(main, parts=[main, later]).node(2, ())
    assert (node.job_id, node.image) == (f"{NAME}#2", "other")


def test_options_of_own_job_are_read():
    assert describe.options(job(options={"vcpu": 0.5}))["vcpu"] == 0.5
