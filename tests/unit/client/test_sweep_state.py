"""Counts of a sweep's calls over all of its jobs."""

import pytest

from farcall.client import sweep_state
from farcall.client.progress import Counts
from farcall.engine.group import TaskGroup
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.submission import Submission
from farcall.model.timing import Timing
from farcall.payload.results import Result
from farcall_runtime.contract import Location


def job(job_id, size):
    return Submission(job_id, "n", Location("b", "p/v1/run", job_id), b"key", size)


def array(job_id, **summary):
    return JobDetail(job_id, "n", status=JobStatus.PENDING, array_size=9, status_summary=summary)


@pytest.fixture
def waiting():
    """Sweep of 25 calls, two per task, in an array of 10, an array of 2, and a plain job."""
    made = sweep_state.SweepState(25, 2, Timing(), None)
    for submission, calls in ((job("a", 10), 20), (job("b", 2), 4), (job("c", 1), 1)):
        made.record_job(TaskGroup(None, submission, None), calls)
    return made


def test_calls_are_numbered_across_jobs(waiting):
    first, second, last = waiting.arrays.values()
    assert first.numbers(9) == range(18, 20)
    assert [second.numbers(n) for n in range(2)] == [range(20, 22), range(22, 24)]
    assert last.numbers(0) == range(24, 25)


def test_calls_without_batch_status_are_queued(waiting):
    assert waiting.count(lambda _: None) == Counts(0, 0, 0, total=25)
    assert sweep_state.SweepState(25, 2, Timing(), None).count(lambda _: None) == Counts(
        0, 0, 0, total=25
    )


def test_calls_are_counted_over_all_jobs(waiting):
    details = {
        "a": array("a", RUNNABLE=3, STARTING=1, RUNNING=2, SUCCEEDED=3, FAILED=1),
        "b": array("b", PENDING=2),
        "c": JobDetail("c", "n", status=JobStatus.RUNNING),
    }
    assert waiting.count(details.get) == Counts(running=6 + 1, done=8, failed=0, total=25)


def test_fetched_calls_count_before_batch_status(waiting):
    waiting.arrays["a"].ended = 18
    waiting.arrays["c"].ended = 1
    details = {
        "a": array("a", RUNNING=4, SUCCEEDED=1),
        "c": JobDetail("c", "n", JobStatus.RUNNING),
    }
    assert waiting.count(details.get) == Counts(running=2, done=19, failed=0, total=25)


def test_batch_status_counts_before_fetching(waiting):
    waiting.arrays["a"].ended = 2
    details = {
        "a": array("a", SUCCEEDED=10),
        "c": JobDetail("c", "n", status=JobStatus.FAILED),
    }
    assert waiting.count(details.get) == Counts(running=0, done=21, failed=0, total=25)


def test_failed_calls_are_not_done(waiting):
    waiting.arrays["a"].ended = 6
    array = waiting.arrays["a"]
    for index, errors in enumerate([(None, ValueError()), (ValueError(), ValueError())]):
        numbers = array.numbers(index)
        waiting.record_results(array, index, numbers, [Result(error=e) for e in errors])
    count = waiting.count(lambda _: None)
    assert count == Counts(running=0, done=3, failed=3, total=25, errors="ValueError x3")
