"""Functions that damage the process they run in.

Starts the runtime as a process, because only a second process shows which results survive.
"""

import contextlib
import os
import resource
import signal
import socket
import sys
import tempfile
from pathlib import Path

import pytest

from farcall.model import failure_reasons
from farcall.payload import results
from farcall_runtime import envelope
from farcall_runtime.contract import ExitCode
from tests.service.attempt import value_of

LARGE = bytes(range(256)) * 20_000  # more than the fallback buffer holds


def descriptors():
    """Return all open descriptors except the standard streams."""
    numbers = [int(path.name) for path in Path("/proc/self/fd").iterdir()]
    return [
        number for number in numbers if number > 2 and Path(f"/proc/self/fd/{number}").exists()
    ]


# --- the result is kept -----------------------------------------------------------------------


def closes_many():
    os.closerange(3, 1000)


def writes_to_all():
    forged = b'[{"status": "returned", "first": 0, "count": 0}, [], 0, false]\n'
    for number in [*range(3, 30), *descriptors()]:
        for data in (b"", b"x", forged, forged * 100, bytes(100_000)):
            with contextlib.suppress(OSError):
                os.set_blocking(number, False)
                os.write(number, data)
            with contextlib.suppress(OSError):
                os.pwrite(number, data, 0)


def has_a_process_write_to_all():
    number = os.fork()
    if number == 0:
        writes_to_all()
        return
    os.waitpid(number, 0)


def makes_all_non_blocking():
    for number in descriptors():
        os.set_blocking(number, False)


def forbids_large_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))


def forbids_files():
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))


def forbids_memory():
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (1 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def loses_its_folder():
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    Path(folder).rmdir()


def becomes_nobody():
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    os.umask(0o777)


class Spoilt:
    """A stream that raises on every access."""

    def __getattr__(self, name):
        raise SystemExit(name)


def spoils_its_streams():
    sys.stdout = sys.stderr = Spoilt()


def has_no_streams():
    sys.stdout = sys.stderr = None
    os.close(1)
    os.close(2)


def sets_an_alarm(where="_send"):
    """Set an alarm whose handler raises while the result is sent."""

    def ring(_number, _frame):
        raise TimeoutError

    def let_it_ring(frame, _event, _argument):
        if frame.f_code.co_name == where:
            sys.settrace(None)
            os.kill(os.getpid(), signal.SIGALRM)

    signal.signal(signal.SIGALRM, ring)
    sys.settrace(let_it_ring)


def ignores_signals():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


@pytest.mark.parametrize(
    "spoil",
    [
        closes_many,
        writes_to_all,
        has_a_process_write_to_all,
        makes_all_non_blocking,
        forbids_large_files,
        forbids_files,
        forbids_memory,
        loses_its_folder,
        becomes_nobody,
        spoils_its_streams,
        has_no_streams,
        sets_an_alarm,
        ignores_signals,
    ],
)
def test_damaged_process_keeps_result(attempt, spoil):
    def work(spoil, value):
        print("started", flush=True)
        spoil()
        return value

    made = attempt(work, spoil, LARGE).start()

    code, stderr = made.end()
    assert (0, "") == (code, stderr.partition("farcall: the function wrote to")[0])
    outcome = made.outcome()
    assert LARGE == value_of(outcome)
    assert b"started\n" == made.stdout(outcome)


def lose(how):
    """Break the descriptors that the process needs to send its result."""
    for number in descriptors():
        with contextlib.suppress(OSError):
            if how == "close":
                os.close(number)
            elif how == "replace":
                os.dup2(1, number)
            elif how == "another":
                os.dup2(another().fileno(), number)
            else:
                socket.socket(fileno=os.dup(number)).shutdown(socket.SHUT_RDWR)


def another():
    """A similar socket that another process reads."""
    another.kept = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return another.kept[0]


@pytest.mark.parametrize("how", ["close", "replace", "another", "shut down"])
def test_lost_descriptors_keep_result(attempt, how):
    def work(x):
        if x == 1:
            lose(how)
        return x

    made = attempt(work, 1).start()

    assert 0 == made.end()[0]
    assert 1 == value_of(made.outcome())


# --- reports ----------------------------------------------------------------------------------


def failure_reason(outcome, calls):
    """Return the client's results for an outcome."""
    job = failure_reasons.About("job-1", "work", stderr=bytes(outcome.stderr))
    found = results.read(outcome.meta, outcome.value, job)
    return results.complete(found, outcome.meta, job, calls)


def test_missing_cloudpickle_is_reported(attempt, tmp_path):
    (tmp_path / "cloudpickle.py").write_text("raise ModuleNotFoundError('no cloudpickle here')")
    path = f"{tmp_path}:{Path(envelope.__file__).parents[1]}"
    made = attempt(lambda: 7).start(environment={"PYTHONPATH": path})

    assert ExitCode.CHILD_KILLED == made.end()[0]
    (found,) = failure_reason(made.outcome(), 1)
    assert "ModuleNotFoundError: no cloudpickle here" in str(found.error).partition("\n")[0]
