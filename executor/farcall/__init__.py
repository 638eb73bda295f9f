"""Run a Python function as an AWS Batch job and get its result back."""

from farcall.details import JobDetail, JobStatus
from farcall.errors import (
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
    VersionMismatchError,
)
from farcall.executor import BatchExecutor
from farcall.job import Job
from farcall.recovery import Recovered, Run
from farcall.results import CallResult
from farcall.settings import Settings
from farcall.sweep import Sweep
from farcall.task import Task

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
    "VersionMismatchError",
]
