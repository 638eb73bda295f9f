"""Explanations of jobs' states."""

from __future__ import annotations

import json

from farcall.backends.batch.describe import BatchJob
from farcall.engine.fetcher import Usage
from farcall.model.errors import HostLostError, JobCancelledError
from farcall.model.failure_reasons import FailureReason
from farcall.model.jobs import JobStatus
from farcall.operations.explain import (
    Explanation,
    FailedChild,
    of_failure_reason,
    of_waiting,
    record,
)


def test_failure_reason_becomes_failed():
    found = of_failure_reason(FailureReason(HostLostError, "the host is gone", "nothing"))
    assert found == Explanation("failed", "the host is gone", "nothing", "HostLostError")


def test_cancellation_is_no_failure():
    found = of_failure_reason(
        FailureReason(JobCancelledError, "it was cancelled", "submit it again")
    )
    assert (found.kind, found.error) == ("cancelled", "JobCancelledError")


def test_unfinished_job_runs_or_waits():
    kinds = {
        status: of_waiting(BatchJob("6f1c", "x", status)).kind
        for status in JobStatus
        if not status.is_final
    }
    assert kinds.pop(JobStatus.RUNNING) == "running"
    assert set(kinds.values()) == {"waiting"}


def test_record_is_complete_json():
    used = Usage(wall_s=1.5, cpu_s=1.0, peak_memory_bytes=2**20, memory_limit_bytes=2**30)
    child = FailedChild("6f1c:1", "ValueError", "no")
    found = record(
        Explanation("failed", "it failed", "fix it", usage=used, children=(child,), log=("a",))
    )
    assert found["usage"]["wall_s"] == 1.5
    assert found["children"] == ({"job_id": "6f1c:1", "error": "ValueError", "sentence": "no"},)
    assert json.loads(json.dumps(found))["log"] == ["a"]
    assert set(found) == set(Explanation.__dataclass_fields__)
