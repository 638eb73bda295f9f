"""Failure reason tables: their rows and conditions, and the rows of both platforms. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from farcall.model import errors, exit_codes, failure_reasons, start_script
from farcall.model.failure_reasons import MEMORY, OWN_REASON, WITHDRAWN, FailureReason
from farcall.model.jobs import JobDetail, JobStatus
from farcall_runtime.contract import ExitCode

IMAGE = "{image}"
"""Placeholder in a remedy for the job's image: the option's, or a command job's."""

CREATED_BY = "{created by}"
STARTED_BY = "{started by}"
"""Placeholders for facts that prevent a container's creation and start."""

Fits: TypeAlias = Callable[[JobDetail], bool]


class Row(NamedTuple):
    """A row of a failure reason table.

    Attributes:
        fits: Returns whether the row applies to a job.
        failure_reason: The job's failure reason.
    """

    fits: Fits
    failure_reason: FailureReason


def row(fits: Fits, kind: type[errors.JobError], sentence: str, remedy: str) -> Row:
    """Return a row with its own failure reason."""
    return Row(fits, FailureReason(kind, sentence, remedy))


def status(*starts: str) -> Fits:
    """Match a job if its status reason starts with one of these texts."""
    return lambda detail: detail.status_reason.startswith(starts)


def container(start: str, *words: str) -> Fits:
    """Match a job by its container's reason, ignoring case.

    On Fargate, the status reason may contain it.

    Args:
        start: Beginning of the reason.
        words: Patterns, one of which must be in the reason; by default any reason matches.
    """
    within = re.compile("|".join(words), re.IGNORECASE)

    def fits(detail: JobDetail) -> bool:
        texts = (detail.container_reason, detail.status_reason)
        return any(t.lower().startswith(start.lower()) and within.search(t) for t in texts)

    return fits


def exit_code(*codes: int) -> Fits:
    """Match a job if its container has exited with one of these codes."""
    return lambda detail: detail.exit_code in codes


def all_of(*conditions: Fits) -> Fits:
    """Match a job if all conditions match."""
    return lambda detail: all(fits(detail) for fits in conditions)


def has_succeeded(detail: JobDetail) -> bool:
    """Match a job that has succeeded."""
    return detail.status is JobStatus.SUCCEEDED


class Words(NamedTuple):
    """A platform's names in remedies.

    Attributes:
        credentials: Remedy for a job without credentials for its bucket.
        script_credentials: The same for a command job's start script.
        machines: The machines that run the queue's jobs.
        image: Requirement of an image without farcall's runtime.
        lost: Remedy for a lost machine.
        created_by: Facts that determine a task's container, and a command's.
        started_by: Facts that determine how they start.
    """

    credentials: str
    script_credentials: str
    machines: str
    image: str
    lost: str
    created_by: tuple[str, str]
    started_by: tuple[str, str]


def filled(reason: FailureReason, words: Words, detail: JobDetail) -> FailureReason:
    """Return a failure reason with the job's facts for its placeholders, and its exit code."""
    entry = " (farcall's Dockerfile sets the entry point of the task runner), and "
    image = f"the image {detail.image}"
    if not detail.is_command:
        image += " (the option image)"
    if detail.runtime:
        image = (
            f"the image {detail.image} (stock_image_uri; or set image to one built from farcall's "
            "Dockerfile)"
        )
        entry = ", which requires python3, and "
    started_by = words.started_by[detail.is_command]
    remedy = reason.remedy.replace(IMAGE, image)
    remedy = remedy.replace(CREATED_BY, words.created_by[detail.is_command])
    remedy = remedy.replace(STARTED_BY, started_by if detail.is_command else entry + started_by)
    sentence = reason.sentence
    if reason.kind in (errors.JobError, errors.CommandError) and detail.exit_code is not None:
        sentence += f" (exit code {detail.exit_code})"
    return FailureReason(reason.kind, sentence, remedy, detail.exit_code)


MAP_FAILED = FailureReason(
    errors.JobError,
    "a call of the map raised an exception, so the others were cancelled",
    "fix the errors of the failed tasks, and submit the job again",
)
"""Failure reason of an array job."""

RESULT_MISSING = FailureReason(
    errors.OutcomeMissingError,
    "the job succeeded, but its result is not in the bucket: it was delivered before, or deleted",
    "set keep_artifacts to collect a result more than once; if no client has collected it, check "
    "that image is empty or built from farcall's Dockerfile, and that nothing else deletes "
    "results",
)

GIVEN: tuple[Row, ...] = (
    row(
        status(f"{OWN_REASON}{WITHDRAWN}"),
        errors.JobCancelledError,
        "the job appeared after its request was withdrawn, and was terminated",
        "nothing if the job that the reason names does its work; otherwise submit it again",
    ),
    row(
        status(f"{OWN_REASON}{failure_reasons.MAP_FAILED}"),
        errors.JobCancelledError,
        "another call of its map raised an exception, so the job was cancelled",
        "fix the error of that call, and submit the map again",
    ),
    row(
        status(f"{OWN_REASON}{failure_reasons.NO_INSTANCE}"),
        errors.JobStuckError,
        "no instance came for the job within queue_patience, and it was cancelled",
        "submit it again in another queue, or raise queue_patience",
    ),
    row(
        status(OWN_REASON),
        errors.JobCancelledError,
        "the job was cancelled",
        "submit it again if needed",
    ),
)
"""Failure reasons of any job, specific ones first; the first matching row counts."""


def task_exits(platform: str, words: Words) -> list[Row]:
    """Return the rows for exit codes of tasks, with or without the runtime in their image."""
    common = exit_codes.WORDS[platform]
    no_python = FailureReason(
        errors.ImageError,
        "the image could not run farcall's bootstrap",
        f"see its log; stock_image_uri must name an image with {words.image}",
    )
    bootstrapped = {
        ExitCode.BAD_ENVIRONMENT: FailureReason(
            errors.ImageError,
            "the job had no credentials to download farcall's runtime, or did not understand its "
            "start parameters; nothing was run",
            f"{words.credentials}, and remove FARCALL_ variables from {common.extra}",
        ),
        ExitCode.BUNDLE_MISSING: FailureReason(
            errors.OutcomeMissingError,
            "the job did not find farcall's runtime, or its input data, in the bucket; nothing "
            "was run",
            "make the lifecycle rule of s3_bucket_name longer than the wait in the queue, and do "
            "not delete objects below runtime/ and bundles/; then submit again, which stores them "
            "again",
        ),
        ExitCode.INTEGRITY: FailureReason(
            errors.IntegrityError,
            "farcall's runtime in the bucket, or the job's input data, differs from what was "
            "stored; nothing was run",
            "find out who else writes to s3_bucket_name, then submit again, which stores the "
            "changed objects again",
        ),
        ExitCode.VERSION_MISMATCH: FailureReason(
            errors.VersionMismatchError,
            "farcall's runtime was built for a different processor, Python or libc than the job's",
            f"set architecture to the processor of {words.machines}, and stock_image_uri to an "
            "image with glibc (Debian, not Alpine) and the Python minor version used here, or to "
            "an empty string for the official image",
        ),
        ExitCode.STORAGE_UNREACHABLE: FailureReason(
            errors.OutcomeMissingError,
            "the job could not download its data from the bucket; nothing was run",
            f"give {common.rights} s3:GetObject and s3:ListBucket on s3_bucket_name, including "
            f"runtime/; {common.network} S3; and check the clock of its machine",
        ),
        ExitCode.DISK_FULL: FailureReason(
            errors.DiskFullError,
            "the job's temporary folder has no space for farcall's runtime or its packages; "
            "nothing was run",
            f"give the job more disk space: {common.disk}, or more memory if its temporary folder "
            "is in memory",
        ),
        ExitCode.SUPERVISOR_FAILED: FailureReason(
            errors.OutcomeMissingError,
            "farcall's runtime could not be unpacked, or failed, and stored no result",
            "see its log; with a read-only root file system, /tmp must be a volume, or a tmpfs "
            "with the mount option exec",
        ),
        **dict.fromkeys((126, 127, ExitCode.RAISED), no_python),
    }
    return [
        *_exits(bootstrapped, lambda detail: bool(detail.runtime)),
        *_exits(exit_codes.exits_of(platform)),
    ]


def command_exits(platform: str, words: Words) -> list[Row]:
    """Return the rows for exit codes of commands, first those of a workspace's download."""
    common = exit_codes.WORDS[platform]
    script = {
        start_script.TOOLS_MISSING: FailureReason(
            errors.ImageError,
            "the image lacks the tools to download its workspace; nothing was run",
            f"see its log for the missing tool; {IMAGE} needs a shell, coreutils, and python3, "
            "curl or wget; or submit without a workspace",
        ),
        start_script.NO_CREDENTIALS: FailureReason(
            errors.ImageError,
            "the job had no credentials to download its workspace; nothing was run",
            words.script_credentials,
        ),
        start_script.NOT_FETCHED: FailureReason(
            errors.CommandError,
            "the job could not download its workspace; nothing was run",
            f"give {common.rights} s3:GetObject on s3_bucket_name, make the lifecycle rule longer "
            f"than the wait in the queue; and {common.network} S3",
        ),
        start_script.TAMPERED: FailureReason(
            errors.IntegrityError,
            "the workspace in the bucket differs from the one that was uploaded; nothing was run",
            "find out who else writes to s3_bucket_name, delete the object that the log names, "
            "then submit again",
        ),
        start_script.NOT_UNPACKED: FailureReason(
            errors.CommandError,
            "the job could not unpack its workspace; nothing was run",
            "see its log for the cause; the container's user must be able to write to the folder, "
            "or choose another folder for the workspace",
        ),
    }
    own = {
        **dict.fromkeys((126, 127), NOT_RUNNABLE),
        137: FailureReason(
            errors.OutOfMemoryError,
            "the container was killed (SIGKILL), most likely because of its memory use",
            MEMORY,
        ),
        143: FailureReason(
            errors.HostLostError, "the container was stopped (SIGTERM)", words.lost
        ),
    }
    return [*_exits(script, _fetches_workspace), *_exits(own)]


def _exits(reasons: Mapping[int, FailureReason], *conditions: Fits) -> Iterable[Row]:
    return (Row(all_of(*conditions, exit_code(code)), each) for code, each in reasons.items())


def _fetches_workspace(detail: JobDetail) -> bool:
    """Return whether the command begins with farcall's start script."""
    return start_script.unwrap(detail.command)[0] is not None


NOT_RUNNABLE = FailureReason(
    errors.CommandError,
    "the command was not found in the image, or is not executable there",
    f"see the job's log, and check the contents of {IMAGE}",
)

COMMAND_FAILED = row(lambda _: True, errors.CommandError, "the command failed", "see its log")
"""Last row of the tables of commands."""


def waiting(detail: JobDetail, states: Mapping[JobStatus, tuple[str, str]]) -> tuple[str, str]:
    """Return the state of an unfinished job in a sentence, and a remedy.

    Args:
        detail: A plain job, an array task, or a node.
        states: Sentence and remedy of a job without a place to run, by status.
    """
    if detail.is_terminated or detail.is_cancelled:
        remedy = "wait: it has up to half a minute to clean up"
        return "the job is stopping and has not finished yet", remedy
    if detail.is_blocked:
        return f"{detail.platform} cannot start the job: {detail.reason}", detail.remedy
    sentence, remedy = {**states, **_STARTED}[detail.status]
    if detail.attempts:
        tried = f"attempt {detail.attempts} of {detail.attempts_allowed} has failed"
        sentence = f"{tried}; now {sentence}"
    return sentence, remedy.format(job=detail.job_id, whole=detail.job_id.partition("#")[0])


_STARTED = {
    JobStatus.STARTING: (
        "the job has been placed, and its container is starting",
        "wait; pulling a large image takes minutes",
    ),
    JobStatus.RUNNING: (
        "the job runs",
        "run `farcall logs -f {job}` to follow its output, or `farcall cancel {whole}`",
    ),
}
