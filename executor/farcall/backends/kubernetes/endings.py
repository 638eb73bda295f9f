"""Verdicts on jobs of a cluster: why one ended, or cannot begin.

The only place, with its tables in `farcall.backends.kubernetes.blocked` and
`farcall.backends.kubernetes.exits`, that reads the texts of Kubernetes, Kueue and Volcano. It is
asked only about jobs that left no outcome in the bucket: where there is one, the outcome wins.
No I/O.

Sources:
    https://kubernetes.io/docs/concepts/workloads/controllers/job/
    https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
    https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/
    https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/
"""

from __future__ import annotations

import re
from dataclasses import replace

from farcall.backends.kubernetes.blocked import BLOCKED, Heals, row_of, says
from farcall.backends.kubernetes.exits import COMMAND_EXITS, LOST, RUNTIME_EXITS, TASK_EXITS
from farcall.backends.kubernetes.texts import filled
from farcall.backends.matching import Row, all_of, container, exit_code, status
from farcall.backends.own_endings import GIVEN, MAP_FAILED
from farcall.model import errors, start_script
from farcall.model.endings import MEMORY, OWN_REASON, STUCK, Dwell, Verdict
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.timing import Timing
from farcall_runtime.contract import ENV_OWN_NODE_INDEX

NODE_VARIABLES = (ENV_OWN_NODE_INDEX,)
"""Variables that differ from node to node of one group."""

_HOLLOW = ("BackoffLimitExceeded", "FailedIndexes")
"""Reasons of Jobs that say no more than that an attempt was the last one."""

_STUCK = re.compile(rf"{OWN_REASON}{STUCK}[^:]*: ")


def verdict(detail: JobDetail) -> Verdict:
    """Say why a job that left no outcome ended.

    Args:
        detail: A job whose status is final, or what is known of a failed attempt.

    Returns:
        The first row of the table that fits. Where it was ended because it was blocked, the one on
        what blocked it.
    """
    if detail.map_failure:  # which ended its children that had not ended
        return MAP_FAILED
    rows = COMMAND_ENDINGS if detail.is_command else ENDINGS
    found = _stuck(detail) or next(row.verdict for row in rows if row.fits(detail))
    sentence = found.sentence
    if found.kind in (errors.JobError, errors.CommandError) and detail.exit_code is not None:
        sentence += f" (exit code {detail.exit_code})"
    return Verdict(found.kind, sentence, filled(found.remedy, detail), detail.exit_code)


def _stuck(detail: JobDetail) -> Verdict | None:
    """Return why a job was blocked that was ended for it, by the words in its reason."""
    found = _STUCK.match(detail.status_reason)
    if found is None:
        return None
    said = replace(detail, status_reason=detail.status_reason[found.end() :], container_reason="")
    row = row_of(said)
    if row is not None and row.heals is not Heals.OFTEN:
        return row.verdict
    remedy = row.verdict.remedy if row else "ask for less (vcpu, memory, num_gpus)"
    why = f": {row.verdict.sentence}" if row else ""
    return Verdict(
        errors.JobStuckError,
        f"the job could not be placed for stuck_timeout_s and was ended{why}",
        remedy,
    )


def telling(detail: JobDetail) -> str:
    """Return of the cluster's words on an end those that say something."""
    if is_hollow(detail.status_reason):
        return detail.container_reason
    return detail.reason


def is_hollow(reason: str) -> bool:
    """Tell whether a Job's words say no more than that it has failed."""
    return reason.startswith(_HOLLOW)


def is_blocked(detail: JobDetail) -> bool:
    """Tell whether the cluster says that it cannot start a job as things are."""
    is_waiting = not detail.status.is_final and detail.status is not JobStatus.RUNNING
    return is_waiting and not detail.is_terminated and row_of(detail) is not None


def blocked(detail: JobDetail) -> str:
    """Return what to do about a job that cannot be started; empty where nothing keeps it."""
    row = row_of(detail)
    return filled(row.verdict.remedy, detail) if row else ""


def dwell(detail: JobDetail, timing: Timing) -> Dwell:
    """Say how long a job may be blocked before it is told, and before it is ended."""
    row = row_of(detail)
    if row is None or row.heals is Heals.OFTEN:
        return Dwell(timing.blocked_told_s, None)
    if row.heals is Heals.SOMETIMES:
        return Dwell(timing.blocked_told_s, timing.pull_dwell_s)
    return Dwell(0.0, timing.start_dwell_s)


def _succeeded(detail: JobDetail) -> bool:
    return detail.status is JobStatus.SUCCEEDED


def _never_ran(detail: JobDetail) -> bool:
    return detail.exit_code is None and not detail.array_size


def _fetches_workspace(detail: JobDetail) -> bool:
    """Its command begins with farcall's start script, whose exit codes are known."""
    return start_script.unwrap(detail.command)[0] is not None


_NODE_GONE = Verdict(errors.HostLostError, "the node under the job was lost", LOST)

_DONE_TO_IT: tuple[Row, ...] = (
    *GIVEN,
    Row(
        status("JobDeleted"),
        Verdict(
            errors.JobCancelledError,
            "somebody deleted the Job",
            "ask who did (kubectl delete, or a controller that cleans up), and submit it again if "
            "needed; farcall cancel ends a job and keeps its record",
        ),
    ),
    Row(
        status("DeadlineExceeded: Job"),
        Verdict(
            errors.JobTimeoutError,
            "the Job has a deadline as a whole, which farcall did not set, and it has passed",
            "ask who set activeDeadlineSeconds of the Job: a person, or an admission rule",
        ),
    ),
    Row(
        status("DeadlineExceeded"),
        Verdict(
            errors.JobTimeoutError,
            "the job ran longer than time_limit, and Kubernetes ended it",
            "raise time_limit, which counts from the node's start of the pod: pulling the image "
            "is part of it",
        ),
    ),
    Row(
        status("MaxFailedIndexesExceeded"),
        Verdict(
            errors.JobError,
            "too many tasks of the job failed, and the others were ended",
            "see the errors of those that failed, <job ID>:<index>; farcall sets no "
            "maxFailedIndexes, so ask who changed the Job",
        ),
    ),
    Row(
        all_of(status("Evicted"), says("emptydir")),
        Verdict(
            errors.OutOfMemoryError,
            "a volume of the pod has more in it than its limit, and the pod was evicted",
            "raise shm_size, or the sizeLimit of the volume in pod_overlay",
        ),
    ),
    Row(
        all_of(status("Evicted"), says("ephemeral", "disk", "inodes", "imagefs", "nodefs")),
        Verdict(
            errors.DiskFullError,
            "the node's disk was full, or the pod's share of it, and the pod was evicted",
            "write less, write to a claim of mounts, or ask for ephemeral-storage in the "
            "resources of pod_overlay",
        ),
    ),
    Row(
        status("Evicted"),
        Verdict(
            errors.HostLostError,
            "the pod was evicted, for its node lacked something",
            f"{LOST}; where it is memory, others on the node may use more than they ask for",
        ),
    ),
    Row(
        status("PreemptionByScheduler", "Preempted", "Preempting"),
        Verdict(
            errors.HostLostError,
            "the pod was preempted: one of higher priority took its place",
            f"{LOST}; or set priority_class to a higher one",
        ),
    ),
    Row(status("DeletionByTaintManager", "NodeLost", "TaintManagerEviction"), _NODE_GONE),
    Row(
        status("DeletionByPodGC"),
        Verdict(errors.HostLostError, "the node under the job is no more", LOST),
    ),
    Row(
        status("EvictionByEvictionAPI"),
        Verdict(
            errors.HostLostError,
            "the pod was evicted: its node is being drained, most likely",
            LOST,
        ),
    ),
    Row(
        status("TerminationByKubelet", "Shutdown", "NodeShutdown", "Terminated"),
        Verdict(errors.HostLostError, "the node under the job was shut down", LOST),
    ),
    Row(
        status("UnexpectedAdmissionError", "OutOf", "NodeAffinity", "NodeName", "NodePorts"),
        Verdict(
            errors.HostLostError,
            "the node to which the pod was given did not take it",
            f"{LOST}; where it happens again, look at what is named there",
        ),
    ),
    Row(
        all_of(status("PodFailurePolicy"), says("has condition DisruptionTarget")),
        Verdict(
            errors.HostLostError,
            "a node of the job was evicted, preempted or lost, and the others were ended",
            "submit it again",
        ),
    ),
    # Whatever the exit code: 137, or 1 where only a child process was killed.
    Row(
        container("OOMKilled"),
        Verdict(errors.OutOfMemoryError, "the container ran out of memory", MEMORY),
    ),
    *(Row(row.fits, row.verdict) for row in BLOCKED),
    Row(
        all_of(status("PodFailurePolicy"), lambda detail: not detail.is_command),
        Verdict(
            errors.JobError,
            "a failure policy that ends the whole job matched a failure of one of its tasks",
            "see the task that the words name; farcall sets no such rule for maps, so ask who "
            "changed the Job",
        ),
    ),
    Row(
        status("PodDeleted"),
        Verdict(
            errors.JobCancelledError,
            "somebody deleted the pod under the job",
            "ask who did (kubectl delete pod, or a controller), and submit it again if needed",
        ),
    ),
)
"""What was done to a job, known by the texts: the cause before what followed from it."""

_GONE = Row(
    _never_ran,
    Verdict(
        errors.JobError,
        "the job failed and its pods are gone, so nothing tells why",
        "look at its output (farcall logs), and at what deletes pods in its namespace",
    ),
)

ENDINGS: tuple[Row, ...] = (
    Row(
        _succeeded,
        Verdict(
            errors.OutcomeMissingError,
            "the job succeeded, and there is no outcome in the bucket (or there was one, and it "
            "was delivered before)",
            "image must be built from farcall's Dockerfile, or be empty; where another client "
            "took the outcome, set keep_artifacts; nothing else may delete outcomes",
        ),
    ),
    *_DONE_TO_IT,
    *(
        Row(all_of(lambda detail: bool(detail.runtime), exit_code(code)), each)
        for code, each in RUNTIME_EXITS.items()
    ),
    *(Row(exit_code(code), each) for code, each in TASK_EXITS.items()),
    _GONE,
    Row(
        lambda detail: bool(detail.array_size),
        Verdict(
            errors.JobError,
            "a task of the job failed",
            "see the errors of its children, <job ID>:<index>",
        ),
    ),
    Row(
        lambda _: True,
        Verdict(
            errors.JobError,
            "the job failed and left no outcome in the bucket",
            "its log says more; the pod may lack s3:PutObject on s3_bucket_name (service_account, "
            "s3_secret)",
        ),
    ),
)
"""How jobs of functions end; the first row that fits counts, and the last one always fits."""

COMMAND_ENDINGS: tuple[Row, ...] = (
    # As the container runtime tells it before the container's own shell could.
    Row(
        all_of(
            says("^(.*; )?(StartError|ContainerCannotRun|RunContainerError)"),
            says("executable file not found", "permission denied", "no such file"),
        ),
        COMMAND_EXITS[127],
    ),
    *_DONE_TO_IT,
    *(
        Row(all_of(_fetches_workspace, exit_code(code)), each)
        for code, each in COMMAND_EXITS.items()
        if code >= start_script.TOOLS_MISSING and code < 90
    ),
    *(Row(exit_code(code), each) for code, each in COMMAND_EXITS.items() if code > 90),
    _GONE,
    Row(
        lambda _: True,
        Verdict(errors.CommandError, "the command failed", "its log says more"),
    ),
)
"""How command jobs end whose command did not return 0."""
