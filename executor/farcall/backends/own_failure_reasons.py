"""Common failure reasons of both platforms, such as cancellation."""

from __future__ import annotations

from farcall.backends.matching import Row, status
from farcall.model import errors, failure_reasons
from farcall.model.failure_reasons import OWN_REASON, WITHDRAWN, FailureReason
from farcall.model.jobs import JobStatus

MAP_FAILED = FailureReason(
    errors.JobError,
    "a call of the map raised an exception, so the others were cancelled",
    "fix the errors of the failed tasks, and submit the job again",
)
"""Failure reason of an array job."""

STARTED = {
    JobStatus.STARTING: (
        "the job has been placed, and its container is starting",
        "wait; pulling a large image takes minutes",
    ),
    JobStatus.RUNNING: (
        "the job runs",
        (
            "run `farcall logs -f {job}` to follow its output, or `farcall cancel {whole}` to "
            "cancel it"
        ),
    ),
}
"""Sentence and remedy of a job that has a place to run, by status."""

RESULT_MISSING = FailureReason(
    errors.OutcomeMissingError,
    "the job succeeded, but its result is not in the bucket: it was delivered before, or deleted",
    "set keep_artifacts to collect a result more than once; if no client has collected it, check "
    "that image is empty or built from farcall's Dockerfile, and that nothing else deletes "
    "results",
)

GIVEN: tuple[Row, ...] = (
    Row(
        status(f"{OWN_REASON}{WITHDRAWN}"),
        FailureReason(
            errors.JobCancelledError,
            "the job appeared after its request was withdrawn, and was terminated",
            "nothing if the job that the reason names does its work; otherwise submit it again",
        ),
    ),
    Row(
        status(f"{OWN_REASON}{failure_reasons.MAP_FAILED}"),
        FailureReason(
            errors.JobCancelledError,
            "another call of its map raised an exception, so the job was cancelled",
            "fix the error of that call, and submit the map again",
        ),
    ),
    Row(
        status(OWN_REASON),
        FailureReason(
            errors.JobCancelledError, "the job was cancelled", "submit it again if needed"
        ),
    ),
)
"""Failure reasons of any job, specific ones first; the first matching row counts."""
