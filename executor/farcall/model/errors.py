"""Every error that farcall raises.

::

    FarcallError
      SettingsError (also ValueError)     refused before any call
      SubmissionError                     Batch never accepted the job
        TaskNotPicklableError
        TaskTooLargeError
      JobError                            accepted, ended badly
        TaskError                         the function raised
        CommandError                      the command of a command job failed
        JobTimeoutError
        OutOfMemoryError
        HostLostError
        ImageError
        ChildKilledError
        DiskFullError
        JobStuckError
        JobCancelledError
        JobLostError
      OutcomeError                        ended well, the answer cannot be used
        OutcomeMissingError
          SharedMissingError
          PackagesMissingError
        IntegrityError
        VersionMismatchError
        ResultNotPicklableError
      NothingToRetryError                 no task of a job can run again
      UnknownError                        no such job, workflow or run, or not one of farcall's
      ServiceError                        AWS refused, or could not be reached

A message says what happened, to which job or key, and what to do next.
"""

from __future__ import annotations

from typing import Any

from farcall.model import terminal


class FarcallError(Exception):
    """Base of everything farcall raises by itself.

    Its text may quote a task, AWS or the bucket: control characters in it are shown.
    """

    def __str__(self) -> str:
        return terminal.shown(super().__str__())


class SettingsError(FarcallError, ValueError):
    """An option has a wrong value, or names something that does not exist in the account.

    Attributes:
        option: Name of the option, such as ``"queue"``.
    """

    def __init__(self, message: str, *, option: str = "") -> None:
        super().__init__(message)
        self.option = option


class SubmissionError(FarcallError):
    """Batch never accepted the job; nothing runs."""


class TaskNotPicklableError(SubmissionError):
    """The function or one of its arguments cannot leave this process."""


class TaskTooLargeError(SubmissionError):
    """The task exceeds a limit of Batch or S3."""


class _EndedError(FarcallError):
    """What is known of a job that gave no value.

    Attributes:
        job_id: The Batch job's ID; an array child's is ``"<parent>:<index>"``.
        reason: Batch's own words, status reason and container reason; may be empty.
        exit_code: Exit code of the task's process where it had one of its own, else of the
            container; None where neither ended by itself.
        attempts: How many attempts Batch made.
        stdout: What the task had written, decoded from UTF-8; of much output the end, at most
            1 MiB, with a note on what comes before.
        stderr: The same of the other stream.
        log_url: Where the CloudWatch log is, or None.
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


class JobError(_EndedError):
    """Batch accepted the job, and it ended badly."""


class TaskError(JobError):
    """The function raised, and the exception cannot be raised here as it was.

    The message holds the remote traceback. Other exceptions are raised as they were.
    """


class CommandError(JobError):
    """The job's command failed: ``exit_code`` is its own."""


class JobTimeoutError(JobError):
    """The job ran longer than ``time_limit``."""


class OutOfMemoryError(JobError):
    """The job needed more than its ``memory``."""


class HostLostError(JobError):
    """The machine under the job went away: a reclaimed spot instance, a failed host."""


class ImageError(JobError):
    """The container never started: image, role, log group or entry point."""


class ChildKilledError(JobError):
    """The task's process was killed, left (``os._exit``) or could not hand over its value."""


class DiskFullError(JobError):
    """The disk of the job had no room for its packages or project files; nothing ran."""


class JobStuckError(JobError):
    """The job could not be placed for ``stuck_timeout_s``."""


class JobCancelledError(JobError):
    """The job was cancelled or terminated."""


class JobLostError(JobError):
    """Batch does not list the job, and there is no outcome of it."""


class OutcomeError(_EndedError):
    """The job ended, and its answer cannot be used."""


class OutcomeMissingError(OutcomeError):
    """There is no outcome although the job ran, or the job could not reach its bucket."""


class SharedMissingError(OutcomeMissingError):
    """A value that tasks share is no longer in the bucket, so the task was not run."""


class PackagesMissingError(OutcomeMissingError):
    """A package of the task is no longer in the bucket, so the task was not run."""


class IntegrityError(OutcomeError):
    """An object is not what its sender wrote; it was not unpickled."""


class VersionMismatchError(OutcomeError):
    """Workflow and image run different Python or farcall versions."""


class ResultNotPicklableError(OutcomeError):
    """The function returned, and its value cannot leave the container or enter this process."""


class NothingToRetryError(FarcallError):
    """No task of a job can run again, or its bundle is no longer in the bucket."""


class UnknownError(FarcallError):
    """There is no such job, workflow or run, or farcall did not submit it."""


class ServiceError(FarcallError):
    """An AWS service refused a call or could not be reached.

    Attributes:
        operation: Name of the operation, such as ``"SubmitJob"``.
        code: The service's error code, such as ``"AccessDeniedException"``; empty where there
            was no answer.
        request_id: The service's ID of the request, for AWS support.
        status: HTTP status; 0 where there was no answer.
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
        """The permission that the operation needs, in the service's own words."""
        return f"batch:{self.operation}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args, self.__dict__
