"""What waiting jobs wait for, in the web UI's rows."""

import pytest

from farcall.backends.batch.describe import BatchJob
from farcall.model.jobs import JobStatus
from farcall.ui.jobs import waits_for

_CAPACITY = "the job is waiting for capacity"


@pytest.mark.parametrize(
    ("status", "array_size", "counts", "text"),
    [
        (JobStatus.RUNNABLE, 0, {}, _CAPACITY),
        (JobStatus.PENDING, 0, {}, "the job waits for other jobs that it depends on"),
        (JobStatus.RUNNING, 0, {}, ""),
        (JobStatus.SUCCEEDED, 0, {}, ""),
        # Batch reports PENDING for an array until all of its tasks have finished.
        (JobStatus.PENDING, 9, {"RUNNABLE": 1, "RUNNING": 8}, _CAPACITY),
        (JobStatus.PENDING, 9, {"RUNNING": 9}, ""),
        (JobStatus.PENDING, 9, {}, ""),
    ],
)
def test_only_waiting_jobs_have_reason(status, array_size, counts, text):
    job = BatchJob("job", "a-job", status, array_size=array_size, status_summary=counts)
    assert waits_for(job) == text
