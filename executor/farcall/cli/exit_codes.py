"""Exit codes of the command line."""

from __future__ import annotations

from farcall.model.errors import JobLostError, ServiceError, SettingsError, UnknownError

FAILED = 1
WRONG = 2
UNKNOWN = 3
REFUSED = 4
TIMED_OUT = 124
"""Same code as coreutils' timeout."""

INTERRUPTED = 130
"""Shell convention for Ctrl-C: 128 plus the number of SIGINT."""

TABLE = """\b
Exit codes:
    0  success
    1  a task or the command failed
    2  wrong usage, or a wrong value of an option
    3  the job, workflow or run does not exist
    4  AWS or Kubernetes refused a request or could not be reached
  124  wait --timeout has expired
  130  Ctrl-C
launch exits with the exit code of the command.
"""


def code_of(error: BaseException) -> int:
    """Return the exit code of an error."""
    if isinstance(error, (UnknownError, JobLostError)):
        return UNKNOWN
    if isinstance(error, SettingsError):
        return WRONG
    return REFUSED if isinstance(error, ServiceError) else FAILED
