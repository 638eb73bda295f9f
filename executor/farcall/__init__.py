"""Run Python functions as AWS Batch or Kubernetes jobs and get their results back.

    with farcall.BatchPoolExecutor(vcpu=2, memory=4) as pool:       # without async
        ys = list(pool.map(simulate, range(1000)))

    async with farcall.BatchExecutor(vcpu=2, memory=4) as executor:
        y = await (await executor.submit(simulate, 3)).result()

Calls:
    BatchPoolExecutor   a concurrent.futures.Executor: submit, map, shutdown
    BatchFuture         returned by its submit: result, cancel, job_id
    BatchExecutor       for async code; executor.task decorates a function
    Task                a decorated function: await simulate(3), .map, .starmap, .submit, .run
    Sweep               returned by Task.map: await it, or iterate with async for
    Job                 returned by submit and attach: result, status, logs, cancel
    Shared              a value that put has stored once, as an argument of many calls
    CallResult          value or error of one call, with its output and duration
    MapFailure          progress of a map when the error of one call was raised
    Run, Recovered      the tasks of a client that has died, found again
    Settings            every option; see help(farcall.Settings)

Commands in an image (BatchExecutor.command):
    CommandJob, CommandResult, LogLine          the job, its exit code, a line of its output
    Nodes, Device, Ulimit, BindMount, EfsMount, ClaimMount  what its containers get

Job descriptions as Batch returns them: JobDetail, JobStatus

Errors, all derived from FarcallError; your function's exceptions are raised unchanged:
    SettingsError       an option is wrong, or the resource that it names does not exist
    NothingToRetryError the job has no task that can be retried
    UnknownError        the job, workflow or run does not exist
    ServiceError        AWS refused a call or could not be reached
    SubmissionError     Batch did not accept the job
        TaskNotPicklableError, TaskTooLargeError
    JobError            the job has no result
        TaskError, CommandError, JobTimeoutError, OutOfMemoryError, HostLostError, ImageError,
        ChildKilledError, DiskFullError, JobStuckError, JobCancelledError, JobLostError
        OutcomeError    the job has finished, but its result cannot be used
            OutcomeMissingError, SharedMissingError, PackagesMissingError, IntegrityError,
            VersionMismatchError, ResultNotPicklableError

farcall.testing helps you test code that uses farcall; farcall.joblib is a joblib backend. For the
command line, run `farcall --help`. Without an account, run `farcall local -- python script.py`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from farcall.model.commands import BindMount, ClaimMount, Device, EfsMount, Nodes, Ulimit
from farcall.model.errors import (
    ChildKilledError,
    CommandError,
    DiskFullError,
    FarcallError,
    HostLostError,
    ImageError,
    IntegrityError,
    JobCancelledError,
    JobError,
    JobLostError,
    JobStuckError,
    JobTimeoutError,
    NothingToRetryError,
    OutcomeError,
    OutcomeMissingError,
    OutOfMemoryError,
    PackagesMissingError,
    ResultNotPicklableError,
    ServiceError,
    SettingsError,
    SharedMissingError,
    SubmissionError,
    TaskError,
    TaskNotPicklableError,
    TaskTooLargeError,
    UnknownError,
    VersionMismatchError,
)
from farcall.model.jobs import JobDetail, JobStatus

if TYPE_CHECKING:
    from farcall.client.command_job import CommandJob, CommandResult
    from farcall.client.executor import BatchExecutor
    from farcall.client.future import BatchFuture
    from farcall.client.job import Job
    from farcall.client.map_failure import MapFailure
    from farcall.client.pool import BatchPoolExecutor
    from farcall.client.recovery import Recovered, Run
    from farcall.client.shared import Shared
    from farcall.client.sweep import Sweep
    from farcall.client.task import Task
    from farcall.config.settings import Settings
    from farcall.model.output import LogLine
    from farcall.payload.results import CallResult

__version__ = "0.1.0"

__all__ = [
    "BatchExecutor",
    "BatchFuture",
    "BatchPoolExecutor",
    "BindMount",
    "CallResult",
    "ChildKilledError",
    "ClaimMount",
    "CommandError",
    "CommandJob",
    "CommandResult",
    "Device",
    "DiskFullError",
    "EfsMount",
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
    "LogLine",
    "MapFailure",
    "Nodes",
    "NothingToRetryError",
    "OutOfMemoryError",
    "OutcomeError",
    "OutcomeMissingError",
    "PackagesMissingError",
    "Recovered",
    "ResultNotPicklableError",
    "Run",
    "ServiceError",
    "Settings",
    "SettingsError",
    "Shared",
    "SharedMissingError",
    "SubmissionError",
    "Sweep",
    "Task",
    "TaskError",
    "TaskNotPicklableError",
    "TaskTooLargeError",
    "Ulimit",
    "UnknownError",
    "VersionMismatchError",
]

_HOMES = {
    "BatchExecutor": "client.executor",
    "BatchFuture": "client.future",
    "BatchPoolExecutor": "client.pool",
    "CommandJob": "client.command_job",
    "CommandResult": "client.command_job",
    "Job": "client.job",
    "MapFailure": "client.map_failure",
    "LogLine": "model.output",
    "Recovered": "client.recovery",
    "Run": "client.recovery",
    "CallResult": "payload.results",
    "Settings": "config.settings",
    "Shared": "client.shared",
    "Sweep": "client.sweep",
    "Task": "client.task",
}
"""The modules that are imported when one of their names is used: the libraries they need take
a second, and a command line that shows its help needs none of them."""

if not TYPE_CHECKING:
    for _name in set(__all__) - set(_HOMES):
        globals()[_name].__module__ = __name__  # where users find it, and what tracebacks say

    _HINTS = dict.fromkeys(
        ("run", "submit", "map", "Executor"),
        "; use BatchPoolExecutor, or BatchExecutor in code with async",
    )

    def __getattr__(name: str) -> Any:
        """Import the module of a public name."""
        if name not in _HOMES:
            hint = _HINTS.get(name, "")
            raise AttributeError(f"module 'farcall' has no attribute {name!r}{hint}")
        value = getattr(importlib.import_module(f"farcall.{_HOMES[name]}"), name)
        value.__module__ = __name__
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """Return the public names, those that are not imported yet among them."""
        return sorted(__all__)
