"""Pending reasons: what a job that has not ended waits for. No I/O."""

from __future__ import annotations

from farcall.backends.batch.endings import blocked, is_blocked
from farcall.model.jobs import JobDetail, JobStatus

_STATES = {
    JobStatus.SUBMITTED: (
        "Batch has accepted the job and has yet to look at it",
        "wait some seconds",
    ),
    JobStatus.PENDING: (
        "the job waits for other jobs that it depends on",
        "wait; dependsOn in DescribeJobs names them",
    ),
    JobStatus.RUNNABLE: (
        "the job waits for a place to run",
        "wait; if it lasts, look whether the queue's compute environment is VALID and not full",
    ),
    JobStatus.STARTING: (
        "the job has a place, and its container is being started",
        "wait; pulling a large image takes minutes",
    ),
    JobStatus.RUNNING: (
        "the job runs",
        "`farcall logs -f {job}` shows what it prints, `farcall cancel {whole}` ends it",
    ),
}


def tell(detail: JobDetail) -> tuple[str, str]:
    """Say of a job that has not ended what it does or waits for, and what to do.

    Args:
        detail: A plain job, a child of an array, or a node.

    Returns:
        The sentence, and the remedy.
    """
    if detail.is_terminated or detail.is_cancelled:
        remedy = "wait: it has up to half a minute to clean up"
        return "the job was told to stop and has not ended yet", remedy
    if is_blocked(detail):
        reason = detail.status_reason
        return f"Batch cannot place the job: {reason}", blocked(reason)
    sentence, remedy = _STATES[detail.status]
    if detail.attempts:
        tried = f"attempt {detail.attempts} of {detail.attempts_allowed} has failed"
        sentence = f"{tried}; now {sentence}"
    return sentence, remedy.format(job=detail.job_id, whole=detail.job_id.partition("#")[0])
