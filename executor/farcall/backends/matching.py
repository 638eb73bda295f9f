"""Matching: conditions and rows of the failure reason tables. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from farcall.model.failure_reasons import FailureReason
from farcall.model.jobs import JobDetail

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
