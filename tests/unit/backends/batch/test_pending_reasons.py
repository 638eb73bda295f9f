"""Explanations of unfinished jobs."""

import pytest

from farcall.backends.batch.describe import BatchJob
from farcall.model.jobs import Attempt, JobStatus

WAITING = [status for status in JobStatus if not status.is_final]


@pytest.mark.parametrize("status", WAITING)
def test_each_status_has_sentence_and_remedy(status):
    sentence, remedy = BatchJob("6f1c:1", "n", status).waiting()
    assert sentence
    assert remedy
    assert "{" not in remedy


def test_failed_attempt_is_mentioned():
    detail = BatchJob("6f1c", "n", JobStatus.RUNNABLE, tried=(Attempt(),), attempts_allowed=3)
    sentence, _ = detail.waiting()
    assert sentence == "attempt 1 of 3 has failed; now the job is waiting for capacity"


def test_terminating_job_is_not_called_running():
    detail = BatchJob("6f1c", "n", JobStatus.RUNNING, is_terminated=True)
    sentence, remedy = detail.waiting()
    assert sentence == "the job is stopping and has not finished yet"
    assert remedy.startswith("wait")


def test_blocked_job_has_reason_and_remedy():
    reason = "MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE - too large"
    detail = BatchJob("6f1c", "n", JobStatus.RUNNABLE, status_reason=reason)
    sentence, remedy = detail.waiting()
    assert sentence == f"Batch cannot start the job: {reason}"
    assert "maxvCpus" in remedy
