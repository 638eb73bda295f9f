"""What waiting jobs wait for, in the web UI's rows."""

import asyncio
from datetime import timedelta
from types import SimpleNamespace

import pytest

from farcall.backends.batch.describe import BatchJob
from farcall.model.jobs import JobStatus
from farcall.ui.jobs import Jobs, waits_for
from farcall_runtime.contract import ENV_BUNDLE

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


class Queue:
    """A backend with one queue of two waiting jobs and a finished one."""

    def __init__(self):
        self.front = ["first", "second"]
        self.requests = 0
        bundle = "s3://bucket/farcall/v1/user-20260101-000000-abcdef/bundles/b"
        self._jobs = [
            BatchJob(job_id, job_id, status, environment={ENV_BUNDLE: bundle})
            for job_id, status in [
                ("first", JobStatus.RUNNABLE),
                ("second", JobStatus.RUNNABLE),
                ("done", JobStatus.SUCCEEDED),
            ]
        ]

    async def list_jobs(self, queue, since):
        yield self._jobs

    async def describe(self, job_ids):
        wanted = set(job_ids)
        return {job.job_id: job for job in self._jobs if job.job_id in wanted}

    async def positions(self, queue):
        self.requests += 1
        return {job_id: place for place, job_id in enumerate(self.front, 1)}


async def test_positions_take_one_request_per_queue(clock):
    queue = Queue()

    async def session():
        return SimpleNamespace(backend=queue)

    jobs = Jobs(SimpleNamespace(session=session), ["queue"], timedelta(days=1), everybody=True)
    jobs.summaries = SimpleNamespace(read=unread)
    await jobs.poll()
    await jobs.poll_details()
    second = jobs.get("second").detail
    assert jobs.waits_for(second) == f"position 2 in the queue; {_CAPACITY}"
    assert jobs.waits_for(jobs.get("done").detail) == ""
    await jobs.poll_details()
    assert queue.requests == 1

    queue.front = ["second"]
    await asyncio.sleep(10)
    with jobs.listen() as feed:
        await feed.take(10, 0)  # all keys
        await jobs.poll_details()
        assert set(await feed.take(10, 0)) == {"first", "second"}
    assert jobs.waits_for(second) == f"position 1 in the queue; {_CAPACITY}"
    assert jobs.waits_for(jobs.get("first").detail) == _CAPACITY


async def unread(entries):
    return []
