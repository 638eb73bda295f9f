"""Errors that farcall raises.

::

    FarcallError
      SettingsError (also ValueError)     rejected before any submission
      SubmissionError                     Batch never accepted the job
        TaskNotPicklableError
        TaskTooLargeError
      JobError                            accepted, but without a result
        TaskError                         the function raised
        CommandError                      the command of a command job failed
        JobTimeoutError (also TimeoutError)
        OutOfMemoryError (also MemoryError)
        HostLostError
        ImageError
        ChildKilledError
        DiskFullError
        JobStuckError
        JobCancelledError
        JobLostError
        OutcomeError                      finished, but the result is unusable
          OutcomeMissingError
            SharedMissingError
            PackagesMissingError
          IntegrityError
          VersionMismatchError
          ResultNotPicklableError
      NothingToRetryError                 no task of a job can run again
      UnknownError                        no such farcall job, workflow or run
      ServiceError                        AWS refused a call or is unreachable

A message names the failure, the job or key, and the remedy.
"""

from __future__ import annotations

from typing import Any

from farcall.model import terminal


class FarcallError(Exception):
    """Base class of all farcall errors.

    The text may quote a task, AWS or the bucket, so control characters in it are escaped.
    """

    def __str__(self) -> str:
        return terminal.shown(super().__str__())


class SettingsError(FarcallError, ValueError):
    """An option has a wrong value, or names a resource that does not exist.

    Attributes:
        option: Name of the option, such as ``"queue"``.
    """

    def __init__(self, message: str, *, option: str = "") -> None:
        super().__init__(message)
        self.option = option


class SubmissionError(FarcallError):
    """Batch never accepted the job; nothing runs."""


class TaskNotPicklableError(SubmissionError):
    """The function or one of its arguments cannot be pickled."""


class TaskTooLargeError(SubmissionError):
    """The task exceeds a limit of Batch or S3."""


class JobError(FarcallError):
    """Batch accepted the job, and there is no result.

    Attributes:
        job_id: The job's ID; for an array task ``"<parent>:<index>"``.
        reason: Batch's status reason and container reason; may be empty.
        exit_code: Exit code of the task's process if it had its own, otherwise of the container;
            None if neither exited by itself.
        attempts: Number of attempts.
        stdout: The task's stdout, decoded as UTF-8; at most the last 1 MiB, with a note on the
            omitted beginning.
        stderr: The task's stderr, with the same limit.
        log_url: URL of the CloudWatch log, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        job_id: str = "",
        reason: str = "",
        exit_code: int | None = None,
        attempts: int = 0,
        stdout: str = "",
        stderr: str = "",
        log_url: str | None = None,
    ) -> None:
        super().__init__(message)
        self.job_id = job_id
        self.reason = reason
        self.exit_code = exit_code
        self.attempts = attempts
        self.stdout = stdout
        self.stderr = stderr
        self.log_url = log_url

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args, self.__dict__


class TaskError(JobError):
    """The function raised an exception that cannot be re-raised locally.

    The message contains the remote traceback. Other exceptions are re-raised unchanged.
    """


class CommandError(JobError):
    """The job's command failed; ``exit_code`` is the command's."""


class JobTimeoutError(JobError, TimeoutError):
    """The job reached its ``time_limit``."""


class OutOfMemoryError(JobError, MemoryError):
    """The job needed more than its ``memory``."""


class HostLostError(JobError):
    """The job's host was lost: a reclaimed spot instance, a failed machine."""


class ImageError(JobError):
    """The container did not start, because of its image, role, log group or entry point."""


class ChildKilledError(JobError):
    """The task's process was killed, called ``os._exit`` or lost its result."""


class DiskFullError(JobError):
    """The job's disk had no space for its packages or project files; nothing ran."""


class JobStuckError(JobError):
    """The job could not be placed within ``stuck_timeout_s`` or ``queue_patience``."""


class JobCancelledError(JobError):
    """The job was cancelled or terminated."""


class JobLostError(JobError):
    """Batch does not list the job, and it has no outcome."""


class OutcomeError(JobError):
    """The job finished, and its result cannot be used."""


class OutcomeMissingError(OutcomeError):
    """The job's result is not in the bucket: it was not stored, or was delivered before."""


class SharedMissingError(OutcomeMissingError):
    """A shared value is no longer in the bucket, so the task was not run."""


class PackagesMissingError(OutcomeMissingError):
    """One of the task's packages is no longer in the bucket, so the task was not run."""


class IntegrityError(OutcomeError):
    """An object differs from what its sender wrote; it was not unpickled."""


class VersionMismatchError(OutcomeError):
    """Client and image run different Python or farcall versions."""


class ResultNotPicklableError(OutcomeError):
    """The function's result cannot be pickled in the container or unpickled here."""


class NothingToRetryError(FarcallError):
    """None of a job's tasks can run again, or its bundle is no longer in the bucket."""


class UnknownError(FarcallError):
    """The job, workflow or run does not exist, or farcall did not submit it."""


class ServiceError(FarcallError):
    """An AWS service refused a call or could not be reached.

    Attributes:
        operation: Name of the operation, such as ``"SubmitJob"``.
        code: The service's error code, such as ``"AccessDeniedException"``; empty without a
            response.
        request_id: The service's ID of the request, for AWS support.
        status: HTTP status; 0 without a response.
        sent: Whether the service may have acted on the request.
    """

    def __init__(
        self,
        message: str,
        *,
        operation: str = "",
        code: str = "",
        request_id: str = "",
        status: int = 0,
        sent: bool = True,
    ) -> None:
        super().__init__(message)
        self.operation = operation
        self.code = code
        self.request_id = request_id
        self.status = status
        self.sent = sent

    @property
    def permission(self) -> str:
        """IAM permission that the operation needs, such as ``batch:SubmitJob``."""
        return f"batch:{self.operation}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args, self.__dict__
