"""Matching: what the rows of the ending tables are made of. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from farcall.model.failure_reasons import FailureReason
from farcall.model.jobs import JobDetail

IMAGE = "{image}"
"""Placeholder in a remedy for the job's image: the option's, or a command job's own."""

CREATED_BY = "{created by}"
STARTED_BY = "{started by}"
"""Placeholders for causes that keep a container from being created and started."""

Fits: TypeAlias = Callable[[JobDetail], bool]


class Row(NamedTuple):
    """A row of an ending table.

    Attributes:
        fits: Tells whether it is about a job.
        failure_reason: What it says of it.
    """

    fits: Fits
    failure_reason: FailureReason


def status(*starts: str) -> Fits:
    """The status reason begins with one of these."""
    return lambda detail: detail.status_reason.startswith(starts)


def container(start: str, *words: str) -> Fits:
    """The agent's words, which on Fargate may be the status reason, and may differ in case.

    Args:
        start: How they begin.
        words: Patterns one of which is in them; by default nothing more is asked for.
    """
    within = re.compile("|".join(words), re.IGNORECASE)

    def fits(detail: JobDetail) -> bool:
        texts = (detail.container_reason, detail.status_reason)
        return any(t.lower().startswith(start.lower()) and within.search(t) for t in texts)

    return fits


def exit_code(*codes: int) -> Fits:
    """The container left with one of these."""
    return lambda detail: detail.exit_code in codes


def all_of(*conditions: Fits) -> Fits:
    """Each of these fits."""
    return lambda detail: all(fits(detail) for fits in conditions)
