"""Run a Python function as an AWS Batch job and get its result back."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from farcall.model.errors import (
    ChildKilledError,
    FarcallError,
    HostLostError,
    ImageError,
    IntegrityError,
    JobCancelledError,
    JobError,
    JobLostError,
    JobStuckError,
    JobTimeoutError,
    OutcomeError,
    OutcomeMissingError,
    OutOfMemoryError,
    ResultNotPicklableError,
    ServiceError,
    SettingsError,
    SubmissionError,
    TaskError,
    TaskNotPicklableError,
    TaskTooLargeError,
    UnknownError,
    VersionMismatchError,
)
from farcall.model.jobs import JobDetail, JobStatus

if TYPE_CHECKING:
    from farcall.client.executor import BatchExecutor
    from farcall.client.job import Job
    from farcall.client.recovery import Recovered, Run
    from farcall.client.sweep import Sweep
    from farcall.client.task import Task
    from farcall.model.settings import Settings
    from farcall.payload.results import CallResult

__version__ = "0.1.0"

__all__ = [
    "BatchExecutor",
    "CallResult",
    "ChildKilledError",
    "FarcallError",
    "HostLostError",
    "ImageError",
    "IntegrityError",
    "Job",
    "JobCancelledError",
    "JobDetail",
    "JobError",
    "JobLostError",
    "JobStatus",
    "JobStuckError",
    "JobTimeoutError",
    "OutOfMemoryError",
    "OutcomeError",
    "OutcomeMissingError",
    "Recovered",
    "ResultNotPicklableError",
    "Run",
    "ServiceError",
    "Settings",
    "SettingsError",
    "SubmissionError",
    "Sweep",
    "Task",
    "TaskError",
    "TaskNotPicklableError",
    "TaskTooLargeError",
    "UnknownError",
    "VersionMismatchError",
]

_HOMES = {
    "BatchExecutor": "client.executor",
    "Job": "client.job",
    "Recovered": "client.recovery",
    "Run": "client.recovery",
    "CallResult": "payload.results",
    "Settings": "model.settings",
    "Sweep": "client.sweep",
    "Task": "client.task",
}
"""The modules that are imported when a name of theirs is asked for: the libraries they need take
a second, and a command line that shows its help needs none of them."""

if not TYPE_CHECKING:
    for _name in set(__all__) - set(_HOMES):
        globals()[_name].__module__ = __name__  # where users find it, and what tracebacks say

    def __getattr__(name: str) -> Any:
        """Import the module of a public name."""
        if name not in _HOMES:
            raise AttributeError(f"module 'farcall' has no attribute {name!r}")
        found = getattr(importlib.import_module(f"farcall.{_HOMES[name]}"), name)
        found.__module__ = __name__
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        """Return the public names, those that are not imported yet among them."""
        return sorted({*globals(), *__all__})
