"""Run a Python function as an AWS Batch job and get its result back.

    with farcall.BatchPoolExecutor(vcpu=2, memory=4) as pool:       # without async
        ys = list(pool.map(simulate, range(1000)))

    async with farcall.BatchExecutor(vcpu=2, memory=4) as executor:
        y = await (await executor.submit(simulate, 3)).result()

Calls:
    BatchPoolExecutor   a concurrent.futures.Executor: submit, map, shutdown
    BatchFuture         what its submit returns: result, cancel, job_id
    BatchExecutor       for async code; its task decorates a function
    Task                such a function: await simulate(3), .map, .starmap, .submit, .run
    Sweep               what Task.map returns: to be awaited, or iterated by async for
    Job                 what submit and attach give: result, status, logs, cancel
    Shared              a value that put has stored once, for arguments of many calls
    CallResult          value or error of one call, with output and time
    MapFailure          how far a map had come when a call's error was raised
    Run, Recovered      the tasks of a client that is gone, found again
    Settings            every option; see help(farcall.Settings)

Commands in an image (BatchExecutor.command):
    CommandJob, CommandResult, NodeLine         the job, how it ended, a line it wrote
    Nodes, Device, Ulimit, BindMount, EfsMount, ClaimMount  what its containers have

What Batch says of a job: JobDetail, JobStatus

Errors, below FarcallError; the function's own exception is raised as it is:
    SettingsError       an option is wrong, or names what does not exist
    NothingToRetryError no task of a job can run again
    UnknownError        there is no such job, workflow or run
    ServiceError        AWS refused a call, or could not be reached
    SubmissionError     Batch did not accept the job
        TaskNotPicklableError, TaskTooLargeError
    JobError            the job ended badly
        TaskError, CommandError, JobTimeoutError, OutOfMemoryError, HostLostError, ImageError,
        ChildKilledError, DiskFullError, JobStuckError, JobCancelledError, JobLostError
    OutcomeError        the job ended, and its answer cannot be used
        OutcomeMissingError, SharedMissingError, PackagesMissingError, IntegrityError,
        VersionMismatchError, ResultNotPicklableError

farcall.testing helps to test code that uses it; farcall.joblib is a backend of joblib. The command
line is `farcall --help`; without an account, `farcall local -- python script.py` runs a script.
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
    from farcall.engine.logs.node_poller import NodeLine
    from farcall.model.settings import Settings
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
    "MapFailure",
    "NodeLine",
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
    "NodeLine": "engine.logs.node_poller",
    "Recovered": "client.recovery",
    "Run": "client.recovery",
    "CallResult": "payload.results",
    "Settings": "model.settings",
    "Shared": "client.shared",
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
