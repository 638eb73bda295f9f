"""Properties derived from job descriptions."""

from datetime import UTC, datetime

import pytest

from farcall.model import errors
from farcall.model.jobs import Attempt, JobDetail, JobStatus
from farcall_runtime.contract import ExitCode

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def detail(job_id="6f1c", status=JobStatus.RUNNING, **fields):
    return JobDetail(job_id, "name", status, **fields)


def test_two_statuses_are_final():
    assert [each.value for each in JobStatus if each.is_final] == ["SUCCEEDED", "FAILED"]
    assert f"{JobStatus.RUNNING}" == "RUNNING"


@pytest.mark.parametrize(
    ("job_id", "is_child", "index"),
    [("6f1c", False, 0), ("6f1c:12", True, 12), ("12", False, 0), ("6f1c:", False, 0)],
)
def test_array_task_is_known_by_id(job_id, is_child, index):
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
def test_attempt_is_over_with_any_end(attempt, is_over):
    assert attempt.is_over is is_over


def test_reason_joins_available_texts():
    assert detail().reason == ""
    assert detail(container_reason="b").reason == "b"
    assert detail(status_reason="a", container_reason="b").reason == "a; b"


def test_listing_updates_only_status_fields():
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
def test_exit_code_explains_without_platform_texts(status, exit_code, kind):
    found = detail(status=status, exit_code=exit_code).failure_reason()
    assert found.kind is kind
    if status is JobStatus.FAILED:
        assert found.exit_code == exit_code


def test_attempt_is_described_like_a_job():
    array = detail(array_size=3, is_terminated=True, exit_code=0, log_stream="last")
    found = array.of_attempt(Attempt("Host lost", exit_code=1, log_stream="first"))
    assert (found.status, found.reason, found.exit_code, found.log_stream) == (
        JobStatus.FAILED,
        "Host lost",
        1,
        "first",
    )
    assert (found.array_size, found.is_terminated) == (0, False)


def test_repr_hides_variables():
    """The variables hold the key that signs outcomes."""
    assert "secret" not in repr(detail(environment={"FARCALL_OUTCOME_KEY": "secret"}))
