"""Exit codes: failures known only by the container's exit code. No I/O."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from farcall.model import errors
from farcall.model.failure_reasons import LOST, MEMORY, SUBNET, About, FailureReason
from farcall.model.names import BATCH, KUBERNETES, PLATFORMS
from farcall_runtime.contract import ExitCode


class _Words(NamedTuple):
    """A platform's names in remedies.

    Attributes:
        extra: Option that is merged into the platform's own document.
        rights: What must have permissions for the bucket.
        network: What needs a route to the bucket.
        disk: How to give a job more disk.
        limits: Where process limits are set.
    """

    extra: str
    rights: str
    network: str
    disk: str
    limits: str


_WORDS = {
    PLATFORMS[BATCH]: _Words(
        "job_definition_extra",
        "batch_job_role_name",
        SUBNET,
        "ephemeralStorage in job_definition_extra on Fargate, a larger volume in the launch "
        "template of the compute environment on EC2",
        "ulimits in job_definition_extra",
    ),
    PLATFORMS[KUBERNETES]: _Words(
        "pod_overlay",
        "what service_account or s3_secret gives the pod",
        "pods need a way to",
        "resources for ephemeral-storage in pod_overlay, or nodes with more",
        "podPidsLimit of the node's kubelet",
    ),
}


def _exits(words: _Words) -> dict[int, FailureReason]:
    """Return the meaning of each exit code, with a platform's names."""
    found: dict[int, FailureReason] = {
        ExitCode.CANCELLED: FailureReason(
            errors.JobCancelledError, "the task was cancelled, and ran nothing", "submit it again"
        ),
        ExitCode.SHARED_MISSING: FailureReason(
            errors.SharedMissingError,
            "the job did not find a value in the bucket that its arguments or its function share "
            "with others, and ran nothing",
            "a lifecycle rule of s3_bucket_name must not be shorter than the wait in the queue, "
            "and what is below shared/ must not be deleted; then submit again, which stores the "
            "value again",
        ),
        ExitCode.STORE_UNFIT: FailureReason(
            errors.OutcomeMissingError,
            "the store of the bucket does not do what S3 does",
            "set s3_bucket_name and endpoint_url to one that does; `farcall doctor` tells what "
            "this one lacks",
        ),
        ExitCode.OUTCOME_OCCUPIED: FailureReason(
            errors.IntegrityError,
            "another client's object is at the key of the job's outcome",
            "find out who else writes to s3_bucket_name, then submit again",
        ),
        ExitCode.BAD_ENVIRONMENT: FailureReason(
            errors.ImageError,
            "the image did not understand how it was started",
            "build the image from this version's Dockerfile, and leave out of "
            f"{words.extra} what sets FARCALL_ variables",
        ),
        ExitCode.BUNDLE_MISSING: FailureReason(
            errors.OutcomeMissingError,
            "the job did not find its payload in the bucket, and ran nothing",
            "a lifecycle rule of s3_bucket_name must not be shorter than the wait in the queue, "
            "and bundles must not be deleted; then submit again. Nothing is to be done where "
            "farcall deleted it: the value had been delivered, or its request was not answered "
            "and another job of this name took the place of this one",
        ),
        ExitCode.INTEGRITY: FailureReason(
            errors.IntegrityError,
            "the payload in the bucket is not the one that was submitted; it was not run",
            "find out who else writes to s3_bucket_name, then submit again",
        ),
        ExitCode.VERSION_MISMATCH: FailureReason(
            errors.VersionMismatchError,
            "workflow and image run different versions",
            "use the same Python minor and the same farcall here and in the image",
        ),
        ExitCode.TIMED_OUT: FailureReason(
            errors.JobTimeoutError, "the job ran longer than time_limit", "raise time_limit"
        ),
        ExitCode.UNREADABLE: FailureReason(
            errors.TaskError,
            "the image could not read the function or its arguments",
            'set packages to "auto", or install what they import in the image',
        ),
        ExitCode.OUTCOME_NOT_STORED: FailureReason(
            errors.OutcomeMissingError,
            "the function ran and its outcome could not be stored",
            f"{words.rights} needs s3:PutObject on s3_bucket_name (and kms:GenerateDataKey where "
            f"it is encrypted with a key), and {words.network} S3",
        ),
        ExitCode.PACKAGES_MISSING: FailureReason(
            errors.PackagesMissingError,
            "the job did not find its packages in the bucket, and ran nothing",
            "a lifecycle rule of s3_bucket_name must not be shorter than the wait in the queue, "
            "and what is below packages/ must not be deleted; then submit again, which stores "
            "them again",
        ),
        ExitCode.DISK_FULL: FailureReason(
            errors.DiskFullError,
            "the job's disk has no room for its packages, and it ran nothing",
            "leave out what jobs do not need by exclude_packages, or give the job more disk: "
            f"{words.disk}; where the temporary folder is memory, more of that",
        ),
        ExitCode.STORAGE_UNREACHABLE: FailureReason(
            errors.OutcomeMissingError,
            "the job could not reach the bucket",
            f"{words.rights} needs s3:GetObject and s3:ListBucket on s3_bucket_name, and "
            f"{words.network} S3",
        ),
        ExitCode.SUPERVISOR_FAILED: FailureReason(
            errors.OutcomeMissingError,
            "the container's own part failed",
            "its log may have a traceback; a limit of processes or of open files "
            f"({words.limits}) is the most likely cause",
        ),
        ExitCode.CHILD_KILLED: FailureReason(
            errors.ChildKilledError,
            "the task's process was killed, or left without returning",
            f"see its output; {words.rights} may lack s3:PutObject for the outcome",
        ),
        ExitCode.OUT_OF_MEMORY: FailureReason(
            errors.OutOfMemoryError, "the task ran out of memory", MEMORY
        ),
        ExitCode.TERMINATED: FailureReason(
            errors.HostLostError, "the container was stopped (SIGTERM)", LOST
        ),
        137: FailureReason(
            errors.OutOfMemoryError,
            "the container was killed (SIGKILL), most often for its memory",
            MEMORY,
        ),
        126: FailureReason(
            errors.ImageError,
            "the image's entry point could not be run",
            "build the image from farcall's Dockerfile",
        ),
        ExitCode.RAISED: FailureReason(
            errors.JobError,
            "the container left with an error before it could store an outcome",
            "its log says more; most likely the image was not built from "
            "farcall's Dockerfile (Python leaves like this where it lacks farcall_runtime)",
        ),
    }
    found[127] = found[126]
    return found


_EXITS = {platform: _exits(words) for platform, words in _WORDS.items()}
EXITS = _EXITS[PLATFORMS[BATCH]]


def exits_of(platform: str) -> dict[int, FailureReason]:
    """Return the meaning of each exit code on a platform, given `JobDetail.platform`."""
    return _EXITS[platform]


def refused(meta: dict[str, Any], job: About) -> FailureReason:
    """Return why the container refused to run the task.

    Args:
        meta: The description of the outcome that it stored.
        job: What is known of the job.
    """
    found = exits_of(job.platform)[meta["code"]]
    return replace(found, sentence=f"{found.sentence} ({meta['detail']})", exit_code=meta["code"])
