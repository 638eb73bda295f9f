"""What follows from a job's description."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from farcall.model import errors
from farcall.model.jobs import Attempt, JobDetail, JobStatus
from farcall_runtime.contract import ExitCode

NOON = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)


def detail(job_id="6f1c", status=JobStatus.RUNNING, **said):
    return JobDetail(job_id, "name", status, **said)


def test_two_statuses_are_final():
    assert [each.value for each in JobStatus if each.is_final] == ["SUCCEEDED", "FAILED"]
    assert f"{JobStatus.RUNNING}" == "RUNNING"


@pytest.mark.parametrize(
    ("job_id", "is_child", "index"),
    [("6f1c", False, 0), ("6f1c:12", True, 12), ("12", False, 0), ("6f1c:", False, 0)],
)
def test_a_child_is_known_by_its_id(job_id, is_child, index):
    found = detail(job_id)
    assert (found.is_child, found.index) == (is_child, index)


@pytest.mark.parametrize(
    ("attempt", "is_over"),
    [
        (Attempt(), False),
        (Attempt(log_stream="stream", started_at=NOON), False),
        (Attempt(exit_code=0), True),
        (Attempt(stopped_at=NOON), True),
        (Attempt("Host EC2 (instance i-1) terminated."), True),
        (Attempt(container_reason="OutOfMemoryError: x"), True),
    ],
)
def test_an_attempt_is_over_when_anything_is_said_of_its_end(attempt, is_over):
    assert attempt.is_over is is_over


def test_a_reason_is_both_texts_or_the_one_there_is():
    assert detail().reason == ""
    assert detail(container_reason="b").reason == "b"
    assert detail(status_reason="a", container_reason="b").reason == "a; b"


def test_a_listing_tells_how_a_job_is_by_now_and_takes_nothing_else():
    known = detail(
        status_reason="before",
        tried=(Attempt(exit_code=1),),
        log_stream="stream",
        environment={"A": "1"},
        status_summary={"RUNNING": 2},
        is_terminated=True,
    )
    listed = detail(status=JobStatus.FAILED, status_reason="after", exit_code=3, stopped_at=NOON)
    found = known.with_status_of(listed)
    assert (found.status, found.status_reason, found.exit_code, found.stopped_at) == (
        JobStatus.FAILED,
        "after",
        3,
        NOON,
    )
    assert (found.attempts, found.log_stream, found.environment) == (1, "stream", {"A": "1"})
    assert found.is_terminated
    assert found.status_summary == {"RUNNING": 2}
    assert found.with_status_of(
        detail(status_summary={"FAILED": 2}, is_cancelled=True)
    ).status_summary == {"FAILED": 2}


@pytest.mark.parametrize(
    ("status", "exit_code", "kind"),
    [
        (JobStatus.FAILED, ExitCode.OUT_OF_MEMORY, errors.OutOfMemoryError),
        (JobStatus.FAILED, 137, errors.OutOfMemoryError),
        (JobStatus.FAILED, None, errors.JobError),
        (JobStatus.FAILED, 99, errors.JobError),
        (JobStatus.SUCCEEDED, None, errors.OutcomeMissingError),
        (JobStatus.SUCCEEDED, 0, errors.OutcomeMissingError),
    ],
)
def test_without_a_platform_s_texts_the_exit_code_tells_the_end(status, exit_code, kind):
    found = detail(status=status, exit_code=exit_code).failure_reason()
    assert found.kind is kind
    if status is JobStatus.FAILED:
        assert found.exit_code == exit_code


def test_an_attempt_is_told_like_a_job_of_that_attempt_alone():
    array = detail(array_size=3, is_terminated=True, exit_code=0, log_stream="last")
    found = array.of_attempt(Attempt("Host lost", exit_code=1, log_stream="first"))
    assert (found.status, found.reason, found.exit_code, found.log_stream) == (
        JobStatus.FAILED,
        "Host lost",
        1,
        "first",
    )
    assert (found.array_size, found.is_terminated) == (0, False)


def test_variables_are_in_no_repr():
    """They hold the key that an outcome is signed with."""
    assert "secret" not in repr(detail(environment={"FARCALL_OUTCOME_KEY": "secret"}))
