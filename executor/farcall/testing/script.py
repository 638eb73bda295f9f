"""Scripted events of a job, instead of running its function or before that."""

from __future__ import annotations

import math
from collections.abc import (
    Iterable,
)
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from farcall.backends.batch.failure_reasons import EXITED

_NOT_ACCEPTED = "ClientException"


@dataclass(frozen=True)
class ScriptedFailure:
    """End of an attempt whose function does not run, in Batch's terms.

    Attributes:
        status_reason: The attempt's ``statusReason``.
        container_reason: The container's ``reason``; empty for none.
        exit_code: The container's exit code; None if it is unknown.
    """

    status_reason: str = EXITED
    container_reason: str = ""
    exit_code: int | None = None

    may_be_retried: ClassVar[bool] = True
    was_started: ClassVar[bool] = True
    is_by_somebody: ClassVar[bool] = False


@dataclass(frozen=True)
class HostLost(ScriptedFailure):
    """The host is lost, such as a reclaimed spot instance: `farcall.HostLostError`."""

    status_reason: str = "Host EC2 (instance i-0123456789abcdef0) terminated."


@dataclass(frozen=True)
class OutOfMemory(ScriptedFailure):
    """The container exceeds its memory: `farcall.OutOfMemoryError`."""

    container_reason: str = "OutOfMemoryError: Container killed due to memory usage"
    exit_code: int | None = 137


@dataclass(frozen=True)
class ImageFailed(ScriptedFailure):
    """The container cannot be started: `farcall.ImageError`."""

    status_reason: str = "Task failed to start"
    container_reason: str = "CannotPullContainerError: the image cannot be pulled"

    was_started: ClassVar[bool] = False


@dataclass(frozen=True)
class TimedOut(ScriptedFailure):
    """The attempt exceeds ``time_limit``: `farcall.JobTimeoutError`; never retried."""

    status_reason: str = "Job attempt duration exceeded timeout"
    exit_code: int | None = 137

    may_be_retried: ClassVar[bool] = False


@dataclass(frozen=True)
class OutcomeMissing(ScriptedFailure):
    """The job succeeds, but its outcome is missing: `farcall.OutcomeMissingError`."""

    exit_code: int | None = 0


@dataclass(frozen=True)
class Cancelled(ScriptedFailure):
    """Another user cancels the job: `farcall.JobCancelledError`. It is never retried.

    Attributes:
        status_reason: That user's reason.
    """

    status_reason: str = "terminated manually"
    exit_code: int | None = 143

    may_be_retried: ClassVar[bool] = False
    is_by_somebody: ClassVar[bool] = True


@dataclass(frozen=True)
class Stuck:
    """The job cannot be placed: `farcall.JobStuckError` after ``stuck_timeout_s``.

    Attributes:
        reason: Batch's status reason, such as ``"MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT"``.
        for_s: Seconds after which the job is placed; infinite for never.
    """

    reason: str = (
        "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - Service cannot fulfill the capacity requested"
    )
    for_s: float = math.inf


@dataclass(frozen=True)
class Refused:
    """The job is rejected: `farcall.SubmissionError` or `farcall.ServiceError`.

    Attributes:
        message: Error message of SubmitJob.
        code: ``"ClientException"`` for an invalid job, ``"AccessDeniedException"`` for a user
            without permission.
    """

    message: str = "Job size must be less than 30 KiB"
    code: str = _NOT_ACCEPTED


@dataclass(frozen=True)
class Throttled:
    """SubmitJob is throttled and retried, so that the job is delayed.

    Attributes:
        times: Number of throttled requests.
    """

    times: int = 1


Happening: TypeAlias = ScriptedFailure | Stuck | Refused | Throttled
"""Scripted event of a job."""


@dataclass
class Script:
    """Scripted events of a job: at its submission, while it waits, and in attempts."""

    refused: Refused | None = None
    throttled: int = 0
    stuck: Stuck | None = None
    endings: tuple[ScriptedFailure, ...] = ()
    tasks: frozenset[int] | None = None

    @classmethod
    def of(cls, happenings: Iterable[Happening], task: int | Iterable[int] | None) -> Script:
        """Create a script from events; see `FakeCloud.next_job`."""
        tasks = [task] if isinstance(task, int) else task
        script = cls(tasks=None if tasks is None else frozenset(tasks))
        for each in happenings:
            if isinstance(each, Refused):
                script.refused = each
            elif isinstance(each, Throttled):
                script.throttled += each.times
            elif isinstance(each, Stuck):
                script.stuck = each
            elif isinstance(each, ScriptedFailure):
                script.endings += (each,)
            else:
                raise TypeError(
                    f"{each!r} is not an event of a job; use HostLost(), Stuck() or another event "
                    "of farcall.testing"
                )
        return script

    def concerns(self, index: int) -> bool:
        """Return whether the script applies to a task of the job."""
        return self.tasks is None or index in self.tasks
