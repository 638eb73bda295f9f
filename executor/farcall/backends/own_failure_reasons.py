"""Own endings: failure reasons on jobs that farcall ended, by the reason that it gave. No I/O."""

from __future__ import annotations

from farcall.backends.matching import Row, status
from farcall.model import errors, failure_reasons
from farcall.model.failure_reasons import OWN_REASON, WITHDRAWN, FailureReason

MAP_FAILED = FailureReason(
    errors.JobError,
    "a call of the map raised, and the others were ended",
    "correct the errors of the failed tasks, and submit the job again",
)
"""Of an array as a whole."""

GIVEN: tuple[Row, ...] = (
    Row(
        status(f"{OWN_REASON}{WITHDRAWN}"),
        FailureReason(
            errors.JobCancelledError,
            "the job turned up after it had been given up, and was ended",
            "nothing where the job that its reason names does its work; else submit it again",
        ),
    ),
    Row(
        status(f"{OWN_REASON}{failure_reasons.MAP_FAILED}"),
        FailureReason(
            errors.JobCancelledError,
            "another call of its map raised, and the job was ended",
            "correct what that one tells, and submit the map again",
        ),
    ),
    Row(
        status(OWN_REASON),
        FailureReason(
            errors.JobCancelledError, "the job was cancelled", "submit it again if needed"
        ),
    ),
)
"""The first row that fits counts: the special ones before the general."""
