"""Explanation values: why a job is as it is, and how that is said. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from farcall.engine.delivered import Usage
from farcall.model.endings import Verdict
from farcall.model.errors import JobCancelledError
from farcall.model.jobs import JobDetail, JobStatus

WAITING = "waiting"
RUNNING = "running"
RETURNED = "returned"
FAILED = "failed"
CANCELLED = "cancelled"
UNKNOWN = "unknown"

OUTCOME = "outcome"
BATCH = "Batch"


@dataclass(frozen=True)
class FailedChild:
    """One of an array's children, or of a job's nodes, that failed.

    Attributes:
        job_id: Its ID.
        error: Class of the error.
        sentence: What happened.
    """

    job_id: str
    error: str
    sentence: str


@dataclass(frozen=True)
class Explanation:
    """Why a job is as it is.

    All texts may hold what a task has written, control characters among them.

    Attributes:
        kind: ``waiting``, ``running``, ``returned``, ``failed``, ``cancelled``, or ``unknown``
            for a job that farcall did not submit.
        sentence: What happened, or what the job waits for.
        remedy: What to do.
        error: Class of the error, the function's own or one of `farcall.model.errors`; empty where
            there is none.
        traceback: Where the function raised, as the container wrote it; else empty.
        usage: What the task used, where it has told.
        earlier: How each attempt before the last one ended; of a job that goes on, each.
        source: ``outcome``, or ``Batch`` where Batch's words are all there is.
        calls: Of a task of several calls, how many of them returned, raised and so on, in the
            words of `CallStatus`, and how many were not begun (``cut_off``).
        children: Of an array the first failed children; of a job on several nodes those that
            failed first, and not because the main node had ended.
        log: Of what failed and has no traceback, the last lines of its log, where it has told.
    """

    kind: str
    sentence: str
    remedy: str
    error: str = ""
    traceback: str = ""
    usage: Usage | None = None
    earlier: tuple[str, ...] = ()
    source: str = BATCH
    calls: Mapping[str, int] = field(default_factory=dict)
    children: tuple[FailedChild, ...] = ()
    log: tuple[str, ...] = ()


def record(explanation: Explanation) -> dict[str, Any]:
    """Return an explanation as JSON has words for it."""
    return asdict(explanation)


def of_verdict(why: Verdict) -> Explanation:
    """Explain a job that has ended, by what a backend makes of it."""
    kind = CANCELLED if why.kind is JobCancelledError else FAILED
    return Explanation(kind, why.sentence, why.remedy, why.kind.__name__)


def of_waiting(detail: JobDetail) -> Explanation:
    """Explain a job that has not ended."""
    kind = RUNNING if detail.status is JobStatus.RUNNING else WAITING
    return Explanation(kind, *detail.waiting())
