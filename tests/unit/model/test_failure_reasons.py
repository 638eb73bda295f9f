"""Errors about jobs whose process did not return, or never ran."""

import os
import signal

import pytest

from farcall.model import errors, failure_reasons
from farcall.payload import results
from farcall_runtime import envelope
from farcall_runtime.contract import ExitCode, OutcomeStatus
from tests.unit.fakes import JOB

# --- ends of the process ----------------------------------------------------------------------

USAGE = {"peak_memory_bytes": 300 * 2**20, "memory_limit_bytes": 256 * 2**20}


def end(status, child_status, usage=USAGE, **job):
    meta = {
        "status": status,
        "child_status": child_status,
        "usage": usage,
        "results": [],
        "begun": 1,
        "stdout": {},
        "stderr": {},
    }
    (result,) = results.read(meta, b"", failure_reasons.About("job-1", "simulate", **job))
    return result.error


def test_killed_task_names_its_signal():
    error = end(OutcomeStatus.KILLED, -signal.SIGSEGV)
    assert (type(error), error.exit_code) == (errors.ChildKilledError, 139)
    assert "killed by SIGSEGV" in str(error)


def test_exited_task_names_exit_code():
    error = end(OutcomeStatus.EXITED, 7)
    assert (type(error), error.exit_code) == (errors.ChildKilledError, 7)
    assert "exited with code 7 before the function returned" in str(error)


def test_failed_result_transfer_is_explained():
    meta = {
        "status": OutcomeStatus.EXITED,
        "child_status": 1,
        "usage": USAGE,
        "detail": "descriptor 4080 was closed",
    }
    found = failure_reasons.of_process(meta)
    assert (found.kind, found.exit_code) == (errors.ChildKilledError, 1)
    assert found.sentence.endswith("not hand over its result: descriptor 4080 was closed")
    assert "os._exit" not in found.remedy


@pytest.mark.parametrize(
    ("expected", "usage"),
    [
        ("(300 MiB of 256 MiB in use)", USAGE),
        ("(300 MiB in use)", {**USAGE, "memory_limit_bytes": None}),
    ],
)
def test_out_of_memory_error_names_usage(expected, usage):
    error = end(OutcomeStatus.OUT_OF_MEMORY, -signal.SIGKILL, usage)
    assert (type(error), error.exit_code) == (errors.OutOfMemoryError, 137)
    assert expected in str(error)
    assert "raise memory" in str(error)


@pytest.mark.parametrize("child_status", [0, -signal.SIGKILL])
def test_timed_out_task_is_reported(child_status):
    error = end(OutcomeStatus.TIMED_OUT, child_status)
    assert type(error) is errors.JobTimeoutError
    assert "raise time_limit" in str(error)


def test_timed_out_task_names_time_limit():
    meta = {
        "status": OutcomeStatus.TIMED_OUT,
        "child_status": 0,
        "usage": USAGE,
        "time_limit_s": 90.0,
    }
    found = failure_reasons.of_process(meta)
    assert found.sentence.endswith("interrupted so that it could clean up before time_limit=90 s")


@pytest.mark.parametrize(
    ("expected", "code"),
    [
        (errors.OutcomeMissingError, ExitCode.BUNDLE_MISSING),
        (errors.SharedMissingError, ExitCode.SHARED_MISSING),
        (errors.PackagesMissingError, ExitCode.PACKAGES_MISSING),
        (errors.DiskFullError, ExitCode.DISK_FULL),
        (errors.IntegrityError, ExitCode.INTEGRITY),
        (errors.VersionMismatchError, ExitCode.VERSION_MISMATCH),
        (errors.OutcomeMissingError, ExitCode.STORAGE_UNREACHABLE),
    ],
)
def test_refused_task_is_explained(expected, code):
    meta = {"status": OutcomeStatus.REFUSED, "code": code, "detail": "because of this"}
    (result,) = results.read(meta, b"", JOB)
    assert type(result.error) is expected
    assert result.error.exit_code == code
    assert "because of this" in str(result.error)


# --- messages ---------------------------------------------------------------------------------


def test_long_stderr_line_is_truncated():
    stderr = b"first\n" + b"x" * 10_000_000 + b"\n" + b"y" * 3000 + b"\nlast\n"
    error = end(OutcomeStatus.EXITED, 3, stderr=stderr)
    assert len(str(error)) < 10_000
    assert "first" not in str(error)
    assert f"  {'y' * 1000}... (2000 more characters)\n  last" in str(error)
    assert len(error.stderr) == len(stderr)


def test_message_has_last_progress_state():
    states = "".join(f"\r{n}%|####" for n in range(100))
    error = end(OutcomeStatus.EXITED, 3, stderr=f"begin\r\n{states}\nend\n".encode())
    assert str(error).endswith("End of stderr:\n  begin\n  99%|####\n  end")


def test_message_has_all_parts():
    error = end(
        OutcomeStatus.EXITED,
        7,
        reason="Essential container in task exited",
        attempts=2,
        stdout=b"o",
        stderr=os.linesep.join(f"line {n}" for n in range(30)).encode(),
        log_url="https://log",
    )
    text = str(error)
    assert "job job-1 (simulate). To do: " in text  # Batch's text adds nothing here
    assert "To do: " in text
    assert "  line 10\n" in text
    assert "  line 29\n" in text
    assert "line 9\n" not in text
    assert text.endswith("Its log: https://log")
    assert (error.reason, error.attempts, error.stdout) == (
        "Essential container in task exited",
        2,
        "o",
    )


# --- without an outcome -----------------------------------------------------------------------


def test_missing_and_unusable_outcomes_are_explained():
    assert type(failure_reasons.lost(JOB)) is errors.JobLostError
    child = str(failure_reasons.lost(JOB._replace(job_id="job-1:7")))
    assert "Batch does not list the job" in child
    assert "`farcall describe job-1` to see the whole array; submit it again" in child
    assert type(failure_reasons.taken(JOB)) is errors.OutcomeMissingError
    forged = failure_reasons.unusable(envelope.IntegrityError("signature")).error(JOB)
    other = failure_reasons.unusable(envelope.VersionMismatchError("version 9")).error(JOB)
    assert (type(forged), type(other)) == (errors.IntegrityError, errors.VersionMismatchError)
    assert "It was not unpickled" in str(forged)
    assert [error.job_id for error in (forged, other)] == ["job-1", "job-1"]


def test_stack_of_fatal_error_shows_own_frames():
    lines = [
        "Current thread 0x1 (most recent call first):",
        '  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at',
        '  File "/dev/shm/job-1/farcall-sources-9a9b47790ea143/0/src/fit.py", line 2 in solve',
        '  File "/opt/farcall_runtime/task.py", line 303 in _call',
        '  File "<frozen runpy>", line 88 in _run_code',
        "Extension modules: numpy",
    ]
    about = failure_reasons.About("job-1", "fit", stderr="\n".join(lines).encode())
    assert about.message("killed", "see its output").splitlines()[2:] == [
        "  Current thread 0x1 (most recent call first):",
        '    File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at',
        '    File "src/fit.py", line 2 in solve',
        "  Extension modules: numpy",
    ]
