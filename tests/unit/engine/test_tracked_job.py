"""Waiters for a job's tasks, their notifications, and tolerated failures."""

import math

import pytest

from farcall import Settings
from farcall.engine.tracked_job import RetryBudget, TrackedJob, Trouble, UnseenError, is_unseen
from farcall.model import clock as model_clock
from farcall.model.errors import ServiceError
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.submission import Submission
from farcall_runtime.contract import Location
from tests.unit.fakes import TIMING

GIVE_UP_S = 600

THROTTLED = ServiceError("ListObjectsV2 was refused: Slow down", code="SlowDown", status=503)


@pytest.fixture
def empty():
    return []


@pytest.fixture
def make(empty):
    def job(size=1, job_id="6f1c"):
        where = Location("bucket", "farcall/v1/mary-1", "bundle")
        submission = Submission(job_id, "simulate", where, b"key", size)
        return TrackedJob(submission, Settings(), empty.append)

    return job


def detail(status, **details):
    return JobDetail("6f1c", "simulate", status, environment={"A": "1"}, **details)


# --- jobs -------------------------------------------------------------------------------------


def test_end_is_never_reverted(make):
    job = make()
    assert job.take(detail(JobStatus.RUNNING))
    assert not job.take(detail(JobStatus.RUNNING))
    assert job.take(detail(JobStatus.FAILED))
    assert not job.take(detail(JobStatus.RUNNING))
    assert job.detail.status is JobStatus.FAILED
    assert job.poll_at == math.inf


def test_environment_is_not_retained(make):
    job = make()
    job.take(detail(JobStatus.RUNNING))
    assert dict(job.detail.environment) == {}


def test_ended_array_lists_tasks_to_describe(make):
    job, known = make(4), detail(JobStatus.FAILED)
    job.waiting = {1: (print,), 3: (print,)}
    job.ended = {1: known}
    job.take(detail(JobStatus.FAILED, array_size=4))
    assert job.ended == {1: known, 3: None}


# --- patience ---------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def now(monkeypatch):
    """Clock that a test sets."""
    time = [1000.0]
    monkeypatch.setattr(model_clock, "now", lambda: time[0])
    return time


def test_successful_call_resets_patience(now):
    budget = RetryBudget(Trouble(), TIMING)
    budget.record_failure(THROTTLED)
    now[0] += GIVE_UP_S
    budget.record_success()
    now[0] += GIVE_UP_S
    assert budget.record_failure(THROTTLED)


def test_trouble_is_logged_each_minute(now, caplog):
    trouble, texts = Trouble(), []
    budget = RetryBudget(trouble, TIMING)
    with trouble.notifying(texts.append):
        for _ in range(13):
            budget.record_failure(THROTTLED)
            now[0] += 10
        assert trouble.text.endswith("Slow down; retrying for 8 min")
        budget.record_success()
    budget.record_failure(THROTTLED)
    assert [text.rpartition(" for ")[2] for text in texts] == ["10 min", "9 min", "8 min", ""]
    assert "AWS responds again; continuing" in caplog.text


def test_trouble_ends_when_all_recover(now, caplog):
    trouble, texts = Trouble(), []
    one, other = RetryBudget(trouble, TIMING), RetryBudget(trouble, TIMING)
    one.record_failure(THROTTLED)
    other.record_failure(ServiceError("DescribeJobs was refused", code="Throttled", status=429))
    with trouble.notifying(texts.append):
        one.record_success()
        assert "DescribeJobs" in trouble.text
        other.end()
    assert [bool(text) for text in texts] == [True, False]
    assert "answers again" not in caplog.text  # no request was made


# --- errors of requests -----------------------------------------------------------------------


def test_unseen_error_is_found_in_wrappers():
    unseen = UnseenError("it goes on")
    wrapped = ValueError("of the user")
    wrapped.__cause__ = RuntimeError()
    wrapped.__cause__.__context__ = unseen
    assert is_unseen(unseen)
    assert is_unseen(wrapped)
    assert is_unseen(ServiceError("expired", code="ExpiredToken", status=400))
    assert not is_unseen(ValueError("of the user"))
    several = ValueError("a group")
    several.exceptions = (ValueError(), wrapped)  # like ExceptionGroup
    assert is_unseen(several)


def test_circular_causes_terminate():
    one, other = ValueError(), ValueError()
    one.__cause__, other.__cause__ = other, one
    assert not is_unseen(one)
