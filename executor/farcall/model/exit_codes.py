"""Endings known by the container's exit code alone: ours, and a shell's. A table, no I/O."""

from __future__ import annotations

from farcall.model import errors
from farcall.model.rows import LOST, MEMORY, SUBNET, Ending, Row, exit_code
from farcall_runtime.contract import ExitCode

EXITS: tuple[Row, ...] = (
    Row(
        exit_code(ExitCode.STORE_UNFIT),
        Ending(
            errors.OutcomeMissingError,
            "the store of the bucket does not do what S3 does",
            "set s3_bucket_name and endpoint_url to one that does; `farcall doctor` tells what "
            "this one lacks",
        ),
    ),
    Row(
        exit_code(ExitCode.OUTCOME_OCCUPIED),
        Ending(
            errors.IntegrityError,
            "somebody else's object lay where the job had to store its outcome",
            "find out who else writes to s3_bucket_name, then submit again",
        ),
    ),
    Row(
        exit_code(ExitCode.BAD_ENVIRONMENT),
        Ending(
            errors.ImageError,
            "the image did not understand how it was started",
            "build the image of container_image_uri from this version's Dockerfile, and leave "
            "out of job_definition_extra what sets FARCALL_ variables",
        ),
    ),
    Row(
        exit_code(ExitCode.BUNDLE_MISSING),
        Ending(
            errors.OutcomeMissingError,
            "the job did not find its payload in the bucket, and ran nothing",
            "a lifecycle rule of s3_bucket_name must not be shorter than the wait in the queue, "
            "and nobody may delete bundles; then submit again. Nothing is to be done where "
            "farcall deleted it: the value had been delivered, or SubmitJob was not answered and "
            "another job of this name took the place of this one",
        ),
    ),
    Row(
        exit_code(ExitCode.INTEGRITY),
        Ending(
            errors.IntegrityError,
            "the payload in the bucket is not the one that was submitted; it was not run",
            "find out who else writes to s3_bucket_name, then submit again",
        ),
    ),
    Row(
        exit_code(ExitCode.VERSION_MISMATCH),
        Ending(
            errors.VersionMismatchError,
            "workflow and image run different versions",
            "use the same Python minor and the same farcall here and in the image of "
            "container_image_uri",
        ),
    ),
    Row(
        exit_code(ExitCode.TIMED_OUT),
        Ending(errors.JobTimeoutError, "the job ran longer than time_limit", "raise time_limit"),
    ),
    Row(
        exit_code(ExitCode.UNREADABLE),
        Ending(
            errors.TaskError,
            "the image could not read the function or its arguments",
            "install what they import in the image of container_image_uri",
        ),
    ),
    Row(
        exit_code(ExitCode.OUTCOME_NOT_STORED),
        Ending(
            errors.OutcomeMissingError,
            "the function ran and its outcome could not be stored",
            "batch_job_role_name needs s3:PutObject on s3_bucket_name (and kms:GenerateDataKey "
            f"where it is encrypted with a key), and {SUBNET} S3",
        ),
    ),
    Row(
        exit_code(ExitCode.STORAGE_UNREACHABLE),
        Ending(
            errors.OutcomeMissingError,
            "the job could not reach the bucket",
            "batch_job_role_name needs s3:GetObject and s3:ListBucket on s3_bucket_name, and "
            f"{SUBNET} S3",
        ),
    ),
    Row(
        exit_code(ExitCode.SUPERVISOR_FAILED),
        Ending(
            errors.OutcomeMissingError,
            "the container's own part failed and left no outcome",
            "its log has the traceback; a limit of processes or of open files (ulimits in "
            "job_definition_extra) is the most likely cause",
        ),
    ),
    Row(
        exit_code(ExitCode.CHILD_KILLED),
        Ending(
            errors.ChildKilledError,
            "the task's process was killed, or left without returning",
            "see its output; batch_job_role_name may lack s3:PutObject for the outcome",
        ),
    ),
    Row(
        exit_code(ExitCode.OUT_OF_MEMORY),
        Ending(errors.OutOfMemoryError, "the task ran out of memory", MEMORY),
    ),
    Row(
        exit_code(ExitCode.TERMINATED),
        Ending(errors.HostLostError, "the container was told to stop (SIGTERM)", LOST),
    ),
    Row(
        exit_code(137),
        Ending(
            errors.OutOfMemoryError,
            "the container was killed (SIGKILL), most often for its memory",
            MEMORY,
        ),
    ),
    Row(
        exit_code(126, 127),
        Ending(
            errors.ImageError,
            "the image's entry point could not be run",
            "build the image of container_image_uri from farcall's Dockerfile",
        ),
    ),
    Row(
        exit_code(ExitCode.RAISED),
        Ending(
            errors.JobError,
            "the container left with an error before it could store an outcome",
            "its log says more; most likely the image of container_image_uri was not built from "
            "farcall's Dockerfile (Python leaves like this where it lacks farcall_runtime)",
        ),
    ),
)
"""Each code is in one row."""
