"""Waiters for a job's tasks, their notifications, and tolerated failures."""

from __future__ import annotations

import math

import pytest

from farcall import Settings
from farcall.engine.tracked_job import Ended, Patience, TrackedJob, Trouble, UnseenError, is_unseen
from farcall.model import clock as model_clock
from farcall.model.errors import FarcallError, ServiceError, SettingsError
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.submission import Submission
from farcall_runtime.contract import Location
from tests.unit.fakes import TIMING

GIVE_UP_S = 600

THROTTLED = ServiceError("ListObjectsV2 was refused: Slow down", code="SlowDown", status=503)
DENIED = ServiceError("ListObjectsV2 was refused: No", code="AccessDenied", status=403)


class Listener:
    """Records its notifications."""

    def __init__(self):
        self.told = []

    def __call__(self, index, arrival):
        self.told.append((index, arrival))


@pytest.fixture
def empty():
    return []


@pytest.fixture
def make(empty):
    def watch(size=1, job_id="6f1c"):
        where = Location("bucket", "farcall/v1/mary-1", "bundle")
        submission = Submission(job_id, "simulate", where, b"key", size)
        return TrackedJob(submission, Settings(), empty.append)

    return watch


def detail(status, **said):
    return JobDetail("6f1c", "simulate", status, environment={"A": "1"}, **said)


# --- watches ----------------------------------------------------------------------------------


def test_everybody_who_waits_for_a_task_is_told_once(make, empty):
    watch, one, other = make(3), Listener(), Listener()
    watch.waiting = {0: (one,), 2: (one, other)}
    end = Ended(None)
    watch.deliver(2, end)
    watch.deliver(2, end)
    assert (one.told, other.told, empty) == ([(2, end)], [(2, end)], [])
    watch.deliver(0, end)
    assert empty == [watch]


def test_who_leaves_is_not_told_and_others_are(make, empty):
    watch, one, other = make(3), Listener(), Listener()
    watch.waiting = {0: (one,), 2: (one, other)}
    watch.leave(one)
    assert watch.waiting == {2: (other,)}
    watch.leave(other)
    assert empty == [watch]


def test_giving_up_tells_everybody_why(make, empty):
    watch, one = make(3), Listener()
    watch.waiting = {0: (one,), 2: (one,)}
    watch.give_up(THROTTLED)
    assert one.told == [(0, Ended(None, THROTTLED)), (2, Ended(None, THROTTLED))]
    assert empty == [watch]


def test_an_end_is_never_taken_back(make):
    watch = make()
    assert watch.take(detail(JobStatus.RUNNING))
    assert not watch.take(detail(JobStatus.RUNNING))
    assert watch.take(detail(JobStatus.FAILED))
    assert not watch.take(detail(JobStatus.RUNNING))
    assert watch.detail.status is JobStatus.FAILED
    assert watch.ask_at == math.inf


def test_of_ten_thousand_jobs_no_environment_is_kept(make):
    watch = make()
    watch.take(detail(JobStatus.RUNNING))
    assert dict(watch.detail.environment) == {}


def test_an_array_that_ended_leaves_those_who_are_waited_for_to_be_asked_for(make):
    watch, known = make(4), detail(JobStatus.FAILED)
    watch.waiting = {1: (Listener(),), 3: (Listener(),)}
    watch.ended = {1: known}
    watch.take(detail(JobStatus.FAILED, array_size=4))
    assert watch.ended == {1: known, 3: None}


def test_a_watch_is_full_where_it_is_told_so(make):
    watch = make()
    assert not watch.is_full
    watch.full = lambda: True
    assert watch.is_full


# --- patience ---------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def now(monkeypatch):
    """The time, which a test sets."""
    time = [1000.0]
    monkeypatch.setattr(model_clock, "now", lambda: time[0])
    return time


def test_what_passes_is_borne_for_a_while_from_its_first_failure_on(now):
    patience = Patience(Trouble(), TIMING)
    assert patience.bear(THROTTLED)
    now[0] += GIVE_UP_S
    assert patience.bear(THROTTLED)
    now[0] += 1
    assert not patience.bear(THROTTLED)
    assert patience.bear(THROTTLED)  # who asks again begins again


def test_a_call_that_gets_through_renews_it(now):
    patience = Patience(Trouble(), TIMING)
    patience.bear(THROTTLED)
    now[0] += GIVE_UP_S
    patience.renew()
    now[0] += GIVE_UP_S
    assert patience.bear(THROTTLED)


@pytest.mark.parametrize("error", [DENIED, SettingsError("no such bucket")])
def test_what_never_passes_is_not_borne(error):
    trouble = Trouble()
    assert not Patience(trouble, TIMING).bear(error)
    assert trouble.text == ""


def test_trouble_is_said_at_once_then_once_a_minute_and_when_it_is_over(now, caplog):
    trouble, told = Trouble(), []
    patience = Patience(trouble, TIMING)
    with trouble.told_to(told.append):
        for _ in range(13):
            patience.bear(THROTTLED)
            now[0] += 10
        assert trouble.text.endswith("Slow down; retrying for 8 min")
        patience.renew()
    patience.bear(THROTTLED)
    assert [text.rpartition(" for ")[2] for text in told] == ["10 min", "9 min", "8 min", ""]
    assert "AWS responds again; continuing" in caplog.text


def test_trouble_of_several_is_over_when_all_of_it_is(now, caplog):
    trouble, told = Trouble(), []
    one, other = Patience(trouble, TIMING), Patience(trouble, TIMING)
    one.bear(THROTTLED)
    other.bear(ServiceError("DescribeJobs was refused", code="Throttled", status=429))
    with trouble.told_to(told.append):
        one.renew()
        assert "DescribeJobs" in trouble.text
        other.end()
    assert [bool(text) for text in told] == [True, False]
    assert "answers again" not in caplog.text  # no request was made


# --- errors of requests -----------------------------------------------------------------------


@pytest.mark.parametrize(("size", "named"), [(1, "result 6f1c`"), (9, "result 6f1c:INDEX`")])
def test_who_waits_is_told_that_the_job_goes_on_and_how_to_go_on_with_it(make, size, named):
    watch, one = make(size), Listener()
    watch.waiting = {0: (one,)}
    Patience(Trouble(), TIMING).endure(DENIED, {"6f1c": watch})
    ((_, ended),) = one.told
    assert type(ended.error) is UnseenError
    assert (ended.error.code, ended.error.status) == ("AccessDenied", 403)
    assert f"`farcall {named}" in str(ended.error)
    assert "`farcall recover mary-1`" in str(ended.error)


def test_whatever_goes_wrong_nobody_waits_for_ever(make, now):
    watch, one = make(), Listener()
    watch.waiting = {0: (one,)}
    patience, fault = Patience(Trouble(), TIMING), ZeroDivisionError("of farcall")
    patience.endure(fault, {"6f1c": watch})
    assert one.told == []
    now[0] += GIVE_UP_S + 1
    patience.endure(fault, {"6f1c": watch})
    ((_, ended),) = one.told
    assert isinstance(ended.error, FarcallError)
    assert ended.error.__cause__ is fault


def test_an_unseen_job_is_known_in_whatever_wraps_the_error():
    unseen = UnseenError("it goes on")
    wrapped = ValueError("of the user")
    wrapped.__cause__ = RuntimeError()
    wrapped.__cause__.__context__ = unseen
    assert is_unseen(unseen)
    assert is_unseen(wrapped)
    assert is_unseen(ServiceError("expired", code="ExpiredToken", status=400))
    assert not is_unseen(ValueError("of the user"))
    several = ValueError("a group")
    several.exceptions = (ValueError(), wrapped)  # as ExceptionGroup has them
    assert is_unseen(several)


def test_errors_that_go_in_a_circle_come_to_an_end():
    one, other = ValueError(), ValueError()
    one.__cause__, other.__cause__ = other, one
    assert not is_unseen(one)
