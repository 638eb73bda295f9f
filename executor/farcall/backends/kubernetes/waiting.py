"""Pending reasons: what a job of a cluster that has not ended does or waits for. No I/O."""

from __future__ import annotations

from farcall.backends.kubernetes.blocked import row_of
from farcall.backends.kubernetes.texts import filled
from farcall.model.jobs import JobDetail, JobStatus

_STATES = {
    JobStatus.SUBMITTED: (
        "Kubernetes has accepted the job and has yet to make its pod",
        "wait some seconds; after an attempt that failed it waits for 10 s, and longer each time",
    ),
    JobStatus.PENDING: (
        "the job's tasks are under way",
        "wait; `farcall describe {job}` counts them",
    ),
    JobStatus.RUNNABLE: (
        "the job waits for a place to run",
        "wait; if it lasts, look whether the nodes have room (kubectl describe nodes)",
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

_SUSPENDED = "Suspended"
_GATED = "SchedulingGated"


def tell(detail: JobDetail) -> tuple[str, str]:
    """Say of a job that has not ended what it does or waits for, and what to do.

    Args:
        detail: A plain job, a child of a map, or a node.

    Returns:
        The sentence, and the remedy.
    """
    if detail.is_terminated:
        remedy = "wait: it has up to half a minute to clean up"
        return "the job was told to stop and has not ended yet", remedy
    row = row_of(detail)
    if row is not None:
        said = detail.reason
        return f"Kubernetes cannot start the job: {said}", filled(row.verdict.remedy, detail)
    if detail.status_reason.startswith((_SUSPENDED, _GATED)):
        return _held(detail)
    sentence, remedy = _STATES[detail.status]
    if detail.attempts:
        tried = f"attempt {detail.attempts} of {detail.attempts_allowed} has failed"
        sentence = f"{tried}; now {sentence}"
    return sentence, remedy.format(job=detail.job_id, whole=detail.job_id.partition("#")[0])


def _held(detail: JobDetail) -> tuple[str, str]:
    _, _, why = detail.status_reason.partition(": ")
    if why:
        sentence = f"the job is held back by its queue: {why}"
        return sentence, "wait; kubectl describe workload, or podgroup, tells more"
    whole = detail.job_id.partition(":")[0]
    remedy = (
        "wait for Kueue to admit it; where no queue has suspended it somebody did, and may let it "
        f'go on: kubectl patch job {whole} --type merge -p \'{{"spec":{{"suspend":false}}}}\''
    )
    return "the job is suspended, and nothing of it starts", remedy
