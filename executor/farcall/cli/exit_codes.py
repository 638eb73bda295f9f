"""What exit codes of ``farcall`` say."""

from __future__ import annotations

from farcall.model.errors import JobLostError, ServiceError, UnknownError

FAILED = 1
UNKNOWN = 3
REFUSED = 4
TIMED_OUT = 124
"""As coreutils' timeout tells that the time was over."""

INTERRUPTED = 130
"""A shell's way to tell of Ctrl-C: 128 and the number of SIGINT."""

TABLE = """\b
Exit codes:
    0  done, and well
    1  a task failed, or something could not be done
    2  wrong usage
    3  a job, workflow or run is unknown, or not farcall's
    4  AWS refused, or cannot be reached
  124  the time of wait --timeout is over
  130  Ctrl-C
launch exits with the exit code of the command.
"""


def code_of(error: BaseException) -> int:
    """Return the exit code that tells of an error."""
    if isinstance(error, (UnknownError, JobLostError)):
        return UNKNOWN
    return REFUSED if isinstance(error, ServiceError) else FAILED
