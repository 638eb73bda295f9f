"""What the rows of the ending tables are made of. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from farcall.model import errors
from farcall.model.jobs import JobDetail

Fits: TypeAlias = Callable[[JobDetail], bool]

LOST = "raise retry_attempts, or set batch_queue to one with on-demand capacity"
MEMORY = "raise memory"
SUBNET = "the subnets of batch_queue's compute environment need a way to"


@dataclass(frozen=True)
class Ending:
    """How a job without an outcome ended.

    Attributes:
        error: The class of the error to raise.
        sentence: What happened.
        remedy: What to do.
    """

    error: type[errors.JobError | errors.OutcomeError]
    sentence: str
    remedy: str


class Row(NamedTuple):
    """A row of an ending table.

    Attributes:
        fits: Tells whether it is about a job.
        ending: What it says of it.
    """

    fits: Fits
    ending: Ending


def status(*starts: str) -> Fits:
    """Batch's status reason begins with one of these."""
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
