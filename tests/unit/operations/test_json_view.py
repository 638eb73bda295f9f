"""The output of `--json` for jobs: names and values that scripts rely on."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from farcall.model import errors
from farcall.model.failure_reasons import FailureReason
from farcall.model.jobs import Attempt, JobDetail, JobStatus, NodeGroup
from farcall.operations import describe, json_view
from farcall.operations.catalog import Entry, Query

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
BUNDLE = "s3://bucket/farcall/v1/mary-20261122-101500-0a1b2c/bundles/sample-0123456789abcdef"


class Cancelled(JobDetail):
    """Job that a backend reports as cancelled."""

    def failure_reason(self):
        return FailureReason(errors.JobCancelledError, "it was cancelled", "submit it again")


def entry(job_id="6f1c", status=JobStatus.RUNNING, kind=JobDetail, **fields):
    environment = {"FARCALL_BUNDLE": BUNDLE, "FARCALL_WORKFLOW": "nightly"}
    name = "sample-0123456789abcdef"
    return Entry.of(kind(job_id, name, status, environment=environment, **fields))


def test_job_has_documented_json_fields():
    found = json_view.job(entry(created_at=NOON, tags={"team": "physics"}, vcpu=2))
    assert json.loads(json.dumps(found)) == {
        "id": "6f1c",
        "platform": "Batch",
        "kind": "function",
        "name": "sample-0123456789abcdef",
        "function": "sample",
        "workflow": "nightly",
        "dispatch": "",
        "run": "mary-20261122-101500-0a1b2c",
        "retry_of": "",
        "client": "mary-20261122-101500-0a1b2c",
        "user": "mary",
        "queue": "",
        "queue_rung": None,
        "state": "RUNNING",
        "detail": "",
        "cancelled_with_map": 0,
        "call": None,
        "error": None,
        "errors": [],
        "warning": None,
        "reason": "",
        "remedy": "",
        "exit_code": None,
        "created_at": "2026-11-20T12:00:00.000+00:00",
        "started_at": None,
        "stopped_at": None,
        "attempts": 0,
        "previous_attempts_s": 0,
        "attempts_allowed": 1,
        "vcpu": 2,
        "memory_mib": 0,
        "memory_rung": None,
        "gpus": 0,
        "time_limit_s": None,
        "image": "",
        "command": [],
        "definition": "",
        "instance_type": "",
        "node_count": 0,
        "groups": [],
        "array_size": 0,
        "counts": {},
        "parent": "",
        "index": None,
        "tags": {"team": "physics"},
    }


@pytest.mark.parametrize(
    ("status", "kind", "state"),
    [
        (JobStatus.FAILED, JobDetail, "FAILED"),
        (JobStatus.FAILED, Cancelled, "CANCELLED"),
        (JobStatus.RUNNING, Cancelled, "RUNNING"),
        (JobStatus.SUCCEEDED, Cancelled, "SUCCEEDED"),
    ],
)
def test_cancelled_job_has_its_own_state(status, kind, state):
    assert json_view.job(entry(status=status, kind=kind))["state"] == state
    assert state in json_view.STATES


def test_duration_of_earlier_attempts_is_shown():
    def attempt(start_s, end_s):
        return Attempt(
            started_at=NOON + timedelta(seconds=start_s),
            stopped_at=NOON + timedelta(seconds=end_s),
        )

    tried = (attempt(0, 2.5), Attempt("Host lost"), attempt(10, 11), attempt(20, 99))
    over = entry(status=JobStatus.FAILED, started_at=NOON + timedelta(seconds=20), tried=tried)
    assert json_view.job(over)["previous_attempts_s"] == 3.5
    again = entry(started_at=NOON + timedelta(seconds=120), tried=tried)
    assert json_view.job(again)["previous_attempts_s"] == 82.5


def test_attempt_has_both_reasons():
    fields = Attempt("Host lost", "OutOfMemoryError: x", 137, "stream", NOON)
    assert json_view.attempt(2, fields) == {
        "attempt": 2,
        "started_at": "2026-11-20T12:00:00.000+00:00",
        "stopped_at": None,
        "exit_code": 137,
        "reason": "Host lost; OutOfMemoryError: x",
        "log_stream": "stream",
    }


def command(job_id="6f1c", **fields):
    environment = {"FARCALL_RUN": "mary-20261122-101500-0a1b2c"}
    groups = (
        NodeGroup(0, 0, image="img", command=("ps",), environment={"KEY": "secret"}),
        NodeGroup(1, 3, image="img", command=("worker",), vcpu=2, memory_mib=1024),
    )
    fields = {"groups": groups, **fields}
    status = fields.pop("status", JobStatus.RUNNING)
    return JobDetail(
        job_id, "hello-0a1b", status, environment=environment, is_command=True, **fields
    )


def test_command_job_shows_its_node_groups():
    found = json.loads(json.dumps(json_view.job(Entry.of(command()))))
    assert (found["kind"], found["function"], found["node_count"]) == ("command", "hello", 4)
    assert "secret" not in json.dumps(found)
    assert found["groups"][1] == {
        "first": 1,
        "last": 3,
        "image": "img",
        "command": ["worker"],
        "vcpu": 2,
        "memory_mib": 1024,
        "gpus": 0,
    }
    node = json_view.job(Entry.of(command("6f1c#2", groups=())))
    assert (node["parent"], node["index"], node["node_count"]) == ("6f1c", 2, 0)


@pytest.mark.parametrize(
    ("whole", "fields", "state"),
    [
        (JobStatus.RUNNABLE, None, "RUNNABLE"),
        (JobStatus.RUNNING, None, "STARTING"),
        (JobStatus.RUNNING, JobStatus.SUCCEEDED, "SUCCEEDED"),
        (JobStatus.FAILED, None, "FAILED"),
    ],
)
def test_unlisted_node_has_state_of_job(whole, fields, state):
    job = command(status=whole, exit_code=1, started_at=NOON)
    node = describe.unstarted(job, 2)
    if fields:
        node = command("6f1c#2", status=fields, groups=(), exit_code=0, started_at=NOON)
    found = json_view.node(node)
    assert (found["id"], found["index"], found["state"]) == ("6f1c#2", 2, state)
    assert found["exit_code"] == (0 if fields else None)
    assert bool(found["started_at"]) is bool(fields)


# --- array jobs -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "state"),
    [
        ({"RUNNING": 1, "RUNNABLE": 7, "SUCCEEDED": 2}, "RUNNING"),
        ({"STARTING": 3, "RUNNABLE": 7}, "STARTING"),
        ({"RUNNABLE": 4, "SUCCEEDED": 6}, "RUNNABLE"),
        ({"SUCCEEDED": 9, "FAILED": 1}, "RUNNING"),  # Batch has yet to record the end
        ({"PENDING": 10}, "PENDING"),
        ({}, "PENDING"),  # some regions list no counts
    ],
)
def test_array_has_state_of_furthest_task(counts, state):
    array = entry(status=JobStatus.PENDING, array_size=10, status_summary=counts)
    assert json_view.state(array.detail) == json_view.job(array)["state"] == state
    assert Query(states=frozenset([state])).fits(array)


@pytest.mark.parametrize("status", [JobStatus.SUCCEEDED, JobStatus.FAILED])
def test_finished_array_has_batch_status(status):
    counts = {"SUCCEEDED": 9, "FAILED": 1}
    array = entry(status=status, array_size=10, status_summary=counts)
    assert json_view.state(array.detail) == status.value


def map_of(reason, failed=98):
    counts = {"SUCCEEDED": 100 - failed, "FAILED": failed}
    fields = {"array_size": 100, "status_summary": counts, "status_reason": reason}
    return json_view.job(entry(status=JobStatus.FAILED, **fields))


def test_failed_map_counts_raised_and_cancelled():
    found = map_of(
        "farcall: map failed: 3 of 100 raised ValueError; 95 were cancelled because of it"
    )
    assert found["detail"] == "3 of 100 raised ValueError; 95 were cancelled because of it"
    assert (found["state"], found["cancelled_with_map"]) == ("FAILED", 95)
    assert found["counts"] == {"SUCCEEDED": 2, "FAILED": 3, "CANCELLED": 95}
    found = map_of(
        "farcall: map failed: 3 of 900 raised KeyError; 850 calls in 93 tasks were cancelled "
        "because of it"
    )
    assert found["cancelled_with_map"] == 93


@pytest.mark.parametrize(
    ("reason", "cancelled"),
    [
        ("farcall: map failed: ; 999999999 were cancelled", 98),  # never more than there are tasks
        ("farcall: map failed: ; 9999999999999999999 were cancelled", 0),
        ("farcall: map failed: 1 of 2 raised E", 0),
        ("map failed: 3 of 100 raised ValueError; 95 were cancelled because of it", 0),
    ],
)
def test_implausible_counts_are_limited(reason, cancelled):
    assert map_of(reason)["cancelled_with_map"] == cancelled
