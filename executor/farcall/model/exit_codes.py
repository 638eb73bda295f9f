"""Exit codes: failures that only the container's exit code reports. No I/O."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from farcall.model import errors
from farcall.model.failure_reasons import LOST, MEMORY, SUBNET, TIME_LIMIT, About, FailureReason
from farcall.model.names import BATCH, KUBERNETES, PLATFORMS
from farcall_runtime.contract import ENV_ARRAY_INDEX, ExitCode


class Words(NamedTuple):
    """Names in a platform's remedies.

    Attributes:
        extra: Option that is merged into the platform's own document.
        rights: Identity that needs permissions for the bucket.
        network: Network that needs a route to the bucket.
        disk: Remedy for a full disk.
        limits: Place where process limits are set.
    """

    extra: str
    rights: str
    network: str
    disk: str
    limits: str


WORDS = {
    PLATFORMS[BATCH]: Words(
        "job_definition_extra",
        "batch_job_role_name",
        SUBNET,
        "ephemeralStorage in job_definition_extra on Fargate, a larger volume in the launch "
        "template of the compute environment on EC2",
        "ulimits in job_definition_extra",
    ),
    PLATFORMS[KUBERNETES]: Words(
        "pod_overlay",
        "the pod's service_account or s3_secret",
        "pods need a route to",
        "resources for ephemeral-storage in pod_overlay, or nodes with more",
        "podPidsLimit of the node's kubelet",
    ),
}


def _exits(words: Words) -> dict[int, FailureReason]:
    """Return the meaning of each exit code, with a platform's names."""
    reasons: dict[int, FailureReason] = {
        ExitCode.CANCELLED: FailureReason(
            errors.JobCancelledError, "the task was cancelled before it ran", "submit it again"
        ),
        ExitCode.SHARED_MISSING: FailureReason(
            errors.SharedMissingError,
            "the job did not run: a value that its arguments or its function share with other "
            "tasks is not in the bucket",
            "make sure that lifecycle rules of s3_bucket_name keep objects for longer than jobs "
            "wait in the queue and that nothing deletes objects below shared/, then submit again, "
            "which stores the value again",
        ),
        ExitCode.STORE_UNFIT: FailureReason(
            errors.OutcomeMissingError,
            "the bucket's object store does not behave like S3",
            "set s3_bucket_name and endpoint_url to one that does; `farcall doctor` shows what "
            "this one lacks",
        ),
        ExitCode.OUTCOME_OCCUPIED: FailureReason(
            errors.IntegrityError,
            "another client's object has the key of the job's stored result",
            "find out who else writes to s3_bucket_name, then submit again",
        ),
        ExitCode.BAD_ENVIRONMENT: FailureReason(
            errors.ImageError,
            "the image was started with settings that it does not understand",
            "build the image from this version's Dockerfile, and do not set FARCALL_ variables in "
            f"{words.extra}",
        ),
        ExitCode.BUNDLE_MISSING: FailureReason(
            errors.OutcomeMissingError,
            "the job did not run: its input data is not in the bucket",
            "make sure that lifecycle rules of s3_bucket_name keep objects for longer than jobs "
            "wait in the queue and that nothing deletes input data, then submit again. No action "
            "is needed if farcall deleted it: the result had been delivered, or the job's request "
            "was not answered and another job of this name replaced this one",
        ),
        ExitCode.INTEGRITY: FailureReason(
            errors.IntegrityError,
            "the job did not run: its input data in the bucket is not what was submitted",
            "find out who else writes to s3_bucket_name, then submit again",
        ),
        ExitCode.VERSION_MISMATCH: FailureReason(
            errors.VersionMismatchError,
            "workflow and image run different versions",
            "use the same Python minor version and the same farcall here and in the image",
        ),
        ExitCode.TIMED_OUT: FailureReason(
            errors.JobTimeoutError, "the job reached time_limit", TIME_LIMIT
        ),
        ExitCode.UNREADABLE: FailureReason(
            errors.TaskError,
            "the image could not read the function or its arguments",
            'set packages to "auto", or install what they import in the image',
        ),
        ExitCode.OUTCOME_NOT_STORED: FailureReason(
            errors.OutcomeMissingError,
            "the function ran, but its result could not be stored",
            f"{words.rights} needs s3:PutObject on s3_bucket_name (and kms:GenerateDataKey if "
            f"it is encrypted with a key), and {words.network} S3",
        ),
        ExitCode.PACKAGES_MISSING: FailureReason(
            errors.PackagesMissingError,
            "the job did not run: its packages are not in the bucket",
            "make sure that lifecycle rules of s3_bucket_name keep objects for longer than jobs "
            "wait in the queue and that nothing deletes objects below packages/, then submit "
            "again, which stores them again",
        ),
        ExitCode.DISK_FULL: FailureReason(
            errors.DiskFullError,
            "the job did not run: its disk has no space for its packages",
            "leave out packages that jobs do not need with exclude_packages, or give the job more "
            f"disk: {words.disk}; if its temporary folder is in memory, more memory",
        ),
        ExitCode.STORAGE_UNREACHABLE: FailureReason(
            errors.OutcomeMissingError,
            "the job could not reach the bucket",
            f"{words.rights} needs s3:GetObject and s3:ListBucket on s3_bucket_name, and "
            f"{words.network} S3",
        ),
        ExitCode.SUPERVISOR_FAILED: FailureReason(
            errors.OutcomeMissingError,
            "farcall's supervisor in the container failed",
            "check the job's log for a traceback; the most likely cause is a limit on processes "
            f"or open files ({words.limits})",
        ),
        ExitCode.CHILD_KILLED: FailureReason(
            errors.ChildKilledError,
            "the task's process was killed, or exited without returning",
            f"see its output; {words.rights} may lack s3:PutObject for the result",
        ),
        ExitCode.OUT_OF_MEMORY: FailureReason(
            errors.OutOfMemoryError, "the task ran out of memory", MEMORY
        ),
        ExitCode.TERMINATED: FailureReason(
            errors.HostLostError, "the container was stopped (SIGTERM)", LOST
        ),
        137: FailureReason(
            errors.OutOfMemoryError,
            "the container was killed (SIGKILL), most often because it ran out of memory",
            MEMORY,
        ),
        126: FailureReason(
            errors.ImageError,
            "the image's entry point could not be run",
            "build the image from farcall's Dockerfile",
        ),
        ExitCode.RAISED: FailureReason(
            errors.JobError,
            "the container exited with an error before it could store a result",
            "see its log; most likely the image was not built from farcall's Dockerfile "
            "(Python exits like this if farcall_runtime is missing)",
        ),
    }
    reasons[127] = reasons[126]
    return reasons


_EXITS = {platform: _exits(words) for platform, words in WORDS.items()}
EXITS = _EXITS[PLATFORMS[BATCH]]


def exits_of(platform: str) -> dict[int, FailureReason]:
    """Return the meaning of each exit code on a platform, given `JobDetail.platform`."""
    return _EXITS[platform]


def refused(meta: dict[str, Any], job: About) -> FailureReason:
    """Return why the container refused to run the task, from its outcome's metadata."""
    reason = exits_of(job.platform)[meta["code"]]
    if ENV_ARRAY_INDEX in meta["detail"]:
        remedy = (
            f"the image is not the cause: {job.platform} must set {ENV_ARRAY_INDEX} for each task "
            "of an array job; an emulator that does not can only run single calls (linger_s=0)"
        )
        reason = replace(reason, sentence="the task has no valid array index", remedy=remedy)
    return replace(
        reason, sentence=f"{reason.sentence} ({meta['detail']})", exit_code=meta["code"]
    )
