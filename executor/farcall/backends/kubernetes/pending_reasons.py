"""Pending reasons: why an unfinished job of a cluster waits. No I/O."""

from __future__ import annotations

from farcall.model.jobs import JobDetail, JobStatus

STATES = {
    JobStatus.SUBMITTED: (
        "Kubernetes has accepted the job and has not created its pod yet",
        "wait a few seconds; after a failed attempt it waits for 10 s, and longer each time",
    ),
    JobStatus.PENDING: (
        "the job's tasks are in progress",
        "wait; run `farcall describe {job}` to count them",
    ),
    JobStatus.RUNNABLE: (
        "the job is waiting for capacity",
        "wait; if it takes long, check the free resources of the nodes (kubectl describe nodes)",
    ),
}

_SUSPENDED = "Suspended"
_GATED = "SchedulingGated"


def held(detail: JobDetail) -> tuple[str, str] | None:
    """Return why a queue, or a user, holds a job back; None if none does."""
    if not detail.status_reason.startswith((_SUSPENDED, _GATED)):
        return None
    _, _, why = detail.status_reason.partition(": ")
    if why:
        sentence = f"the job's queue holds it back: {why}"
        return sentence, "wait; run kubectl describe workload, or podgroup, for details"
    whole = detail.job_id.partition(":")[0]
    remedy = (
        "wait for Kueue to admit it; if it was suspended by a user instead of a queue, resume it: "
        f'kubectl patch job {whole} --type merge -p \'{{"spec":{{"suspend":false}}}}\''
    )
    return "the job is suspended, so it does not start", remedy
