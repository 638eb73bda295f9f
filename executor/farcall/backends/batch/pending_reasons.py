"""Pending reasons: why an unfinished job waits. No I/O."""

from __future__ import annotations

from farcall.model.jobs import JobStatus

STATES = {
    JobStatus.SUBMITTED: (
        "Batch has accepted the job and has not evaluated it yet",
        "wait a few seconds",
    ),
    JobStatus.PENDING: (
        "the job waits for other jobs that it depends on",
        "wait; DescribeJobs lists these jobs in dependsOn",
    ),
    JobStatus.RUNNABLE: (
        "the job is waiting for capacity",
        "wait; if it takes long, check that the queue's compute environment is VALID, not full",
    ),
}
