"""Container attempts under network faults, signals and broken surroundings.

Starts the runtime as a process, because exit codes, signals and streams belong to a process.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from farcall_runtime import envelope
from farcall_runtime.contract import ExitCode
from tests.service.attempt import value_of
from tests.support.patience import until
from tests.support.signing import session


def wait_for(path):
    """A task that says it is there, and ends when a file appears."""
    print("started", flush=True)
    while not Path(path).exists():
        time.sleep(0.02)
    print("ended")
    return 7


def started(made):
    """Wait until the task says that it is there."""
    made.process.stdout.readline()


def test_working_directory_comes_last_on_path(attempt, tmp_path):
    """A module there is found, and replaces none of the standard library's."""
    (tmp_path / "own_module.py").write_text("import decimal, pickle, statistics\nanswer = 42")
    for module in ("json", "pickle", "statistics"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit(3)")

    def work():
        import own_module

        return own_module.answer

    made = attempt(work).start(cwd=tmp_path)
    assert (0, "") == made.end()
    assert value_of(made.outcome()) == 42


# --- the network at the end ------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["refuse", "hang"])
def test_a_network_that_is_gone_is_told_by_the_exit_code(attempt, proxy, tmp_path, fault):
    go = tmp_path / "go"
    made = attempt(wait_for, str(go)).start(3, stdout=subprocess.PIPE)
    started(made)

    getattr(proxy, fault)()
    go.touch()

    code, stderr = made.end()
    assert ExitCode.OUTCOME_NOT_STORED == code
    assert "farcall: the result (done) could not be stored: s3://" in stderr
    assert made.outcome() is None


@pytest.mark.parametrize(
    "faults",
    [
        [(500, "InternalError")] * 3,
        [(503, "SlowDown")] * 3,
        ["lost"] * 2,
        ["truncated"] * 2,
        ["reset"] * 2,
        [(409, "ConditionalRequestConflict")],
        [(400, "ExpiredToken")] * 2,
        [(403, "InvalidToken")],
        [(503, "SlowDown"), "lost", (400, "ExpiredToken"), (500, "InternalError")],
    ],
    ids=lambda faults: "-".join(dict.fromkeys(f if isinstance(f, str) else f[1] for f in faults)),
)
def test_an_outcome_lands_once_whatever_is_answered(attempt, proxy, faults):
    left = proxy.faults["s3 * outcomes"]
    left += faults
    made = attempt(lambda: 7)

    assert (0, "") == made.start().end()
    assert not left
    assert 1 == proxy.answers["s3 PUT outcomes 200"]
    assert [7] == [value_of(made.outcome())]


def test_expired_credentials_are_fetched_anew(aws, attempt, proxy, tmp_path):
    handed_out = []
    later = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))

    def credentials():
        keys = session(aws.environment, aws.environment["FARCALL_BATCH_JOB_ROLE_NAME"])
        handed_out.append(keys["AccessKeyId"])
        return {**keys, "Expiration": later}

    def rule(request):
        if request.path == "/credentials":
            return 200, credentials()
        is_first = request.access_key_id in handed_out[:1]
        return "expired" if request.method == "PUT" and is_first else ""

    proxy.rule = rule
    token = tmp_path / "token"
    token.write_text("secret")
    made = attempt(lambda: 7).start(
        environment={
            "AWS_ACCESS_KEY_ID": "",
            "AWS_SECRET_ACCESS_KEY": "",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{proxy.url}/credentials",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token),
        }
    )

    assert (0, "") == made.end()
    assert handed_out[1] == proxy.seen[-1].access_key_id


def test_what_the_role_may_not_do_is_not_tried_again(attempt, proxy):
    proxy.lasting["s3 PUT *"] = "denied"
    made = attempt(lambda: 7).start()

    code, stderr = made.end()
    assert ExitCode.OUTCOME_NOT_STORED == code
    assert "AccessDenied" in stderr
    assert 1 == proxy.counts["s3 PUT outcomes"]


# --- SIGTERM ----------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["hang"])
def test_sigterm_ends_a_container_that_cannot_fetch(attempt, proxy, fault):
    getattr(proxy, fault)()
    made = attempt(lambda: 7).start()
    tasks = Path(f"/proc/{made.process.pid}/task")
    until(lambda: len(list(tasks.iterdir())) > 1)  # the request has a thread

    made.process.terminate()

    assert ExitCode.TERMINATED == made.end()[0]


class Slow:
    """A value that takes forever to be pickled, or to be unpickled."""

    def __init__(self, phase):
        self.phase = phase

    def __reduce__(self):
        if self.phase == "pickling":
            wait_for("/nowhere")
        return (wait_for, ("/nowhere",)) if self.phase == "unpickling" else (int, ())


@pytest.mark.parametrize("phase", ["unpickling", "running", "pickling"])
def test_sigterm_stops_a_task_and_its_output_is_stored(attempt, phase):
    def work(phase, value):
        if phase == "running":
            wait_for("/nowhere")
        return Slow("pickling")

    argument = Slow("unpickling") if phase == "unpickling" else None
    made = attempt(work, phase, argument).start(stdout=subprocess.PIPE)
    started(made)

    made.process.terminate()

    assert ExitCode.TERMINATED == made.end()[0]
    assert b"started\n" == made.stdout(made.stopped_outcome())
    assert made.outcome() is None


# --- the time limit ---------------------------------------------------------------------------


def wait_until_told(late=None):
    """A task that returns why it was stopped.

    Args:
        late: The file by which its time is up.
    """
    try:
        print("started", flush=True)
        if late is not None:
            Path(late).touch()
        time.sleep(60)  # until the test, or what it tests, ends it
    except KeyboardInterrupt as told:
        print(told)
        raise


def told(made, outcome):
    """Return why a function was stopped."""
    started, *lines = made.stdout(outcome).decode().splitlines()
    assert started == "started"
    return lines


def test_a_function_whose_time_is_up_is_told_so(late):
    made = late(wait_until_told, late.said)

    assert ExitCode.TIMED_OUT == made.end()[0]
    (why,) = told(made, made.outcome())
    sentence = r"the job reached its time limit of 600 s; its process is killed in \d+(\.\d+)? s"
    assert re.fullmatch(sentence, why)


def test_a_function_whose_job_is_stopped_is_told_so(attempt):
    made = attempt(wait_until_told, time_limit=300).start(stdout=subprocess.PIPE)
    started(made)

    made.process.terminate()

    assert ExitCode.TERMINATED == made.end()[0]
    (why,) = told(made, made.stopped_outcome())
    assert why.startswith("AWS Batch is stopping this job (cancelled, terminated, or")
    assert re.search(r"; its process is killed in \d+ s$", why)


def test_a_function_that_does_not_listen_is_out_of_time_with_its_output(late):
    def work(late):
        print("started", flush=True)
        while True:
            try:
                Path(late).touch()  # the signal may come before sleep begins
                time.sleep(60)  # forever: the container has to end it
            except KeyboardInterrupt:
                print("ignored", flush=True)

    made = late(work, late.said, time_limit=100)  # of which it gets five seconds

    assert ExitCode.TIMED_OUT == made.end()[0]
    outcome = made.outcome()
    assert ("timed_out", -signal.SIGKILL) == (
        outcome.meta["status"],
        outcome.meta["child_status"],
    )
    assert b"started\nignored\n" == made.stdout(outcome)


# --- broken surroundings ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tasks", "number", "said"),
    [
        (3, "", "is not set, so it is unknown which one this container must run"),
        (3, "3", "is 3, so this container has no task"),
        (1, "1", "is 1, so this container has no task"),
    ],
)
def test_a_container_that_no_task_is_meant_for_runs_none(attempt, tasks, number, said):
    made = attempt(lambda: 7, tasks=tasks).start(environment={"AWS_BATCH_JOB_ARRAY_INDEX": number})

    assert ExitCode.BAD_ENVIRONMENT == made.end()[0]
    outcome = made.outcome(made.where.outcome_key(int(number or 0)))
    assert "refused" == outcome.meta["status"]
    sentence = f"the job has {tasks} tasks, but AWS_BATCH_JOB_ARRAY_INDEX {said}"
    assert sentence == outcome.meta["detail"]


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", "2>&-"])
def test_a_container_without_streams_does_its_work(attempt, closed):
    def work():
        print("to stdout", flush=True)
        print("to stderr", file=sys.stderr)
        return 7

    made = attempt(work).start(wrapper=("sh", "-c", f'exec "$@" {closed}', "sh"))

    assert (0, "") == made.end()
    outcome = made.outcome()
    assert (b"to stdout\n", b"to stderr\n") == (bytes(outcome.stdout), bytes(outcome.stderr))


@pytest.fixture
def unread():
    """The writing end of a pipe that takes nothing more."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(select.PIPE_BUF))
    os.set_blocking(writer, True)
    yield writer
    os.close(reader)
    os.close(writer)


def test_what_nobody_reads_does_not_hold_an_outcome(attempt, proxy, tmp_path, unread):
    """Neither what the task prints, nor what there is to say of a bucket that refuses."""

    def work(go):
        os.write(1, b"x" * 3_000_000)
        os.write(2, b"y" * 3_000_000)
        while not Path(go).exists():
            time.sleep(0.02)
        return 7

    go = tmp_path / "go"
    proxy.lasting["s3 PUT streams"] = "denied"
    made = attempt(work, str(go)).start(stdout=unread, stderr=unread)
    until(lambda: proxy.counts["s3 PUT streams"])
    go.touch()

    assert 0 == made.end()[0]
    assert 7 == value_of(made.outcome())


@pytest.mark.parametrize("stays", ["process", "handler", "flush"])
def test_a_value_does_not_wait_for_what_the_function_left(attempt, stays):
    def work(stays):
        print("returns", flush=True)
        if stays == "process":  # `multiprocessing` waits for it at the end
            multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,)).start()
        elif stays == "handler":
            atexit.register(time.sleep, 600)
        else:
            sys.stdout = type("Stuck", (), {"flush": lambda _: time.sleep(600)})()
        atexit.register(os.write, 1, b"at the end\n")
        return 7

    made = attempt(work, stays).start(600, 27, 1)

    code, stderr = made.end()
    assert 0 == code
    outcome = made.outcome()
    assert 7 == value_of(outcome)
    assert -signal.SIGKILL == outcome.meta["child_status"]
    assert b"returns\n" == made.stdout(outcome)[:8]
    assert "farcall: killing the task's process, which has not exited for 1 s" in stderr


@pytest.mark.parametrize(
    "broken",
    [
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))",
        "sys.modules['farcall_runtime.contract'] = None",
    ],
    ids=["files", "module"],
)
def test_a_container_that_cannot_begin_does_not_look_like_a_function_that_raised(attempt, broken):
    entry = f"import resource, sys; from farcall_runtime import __main__; {broken}\n"
    entry += "__main__.leave(__main__.main())"
    made = attempt(lambda: 7).start(entry=("-c", entry))

    code, stderr = made.end()
    assert ExitCode.SUPERVISOR_FAILED == code
    assert "Traceback" in stderr


# --- a task that was cancelled alone ----------------------------------------------------------


def touch(path):
    Path(path).touch()


def mark(made, index, key=None):
    name = made.where.cancelled_key(index)
    made.put(name, b"".join(envelope.seal_note(key or made.key, name, {"reason": "enough"})))


AGAIN = {"FARCALL_INDEX": "1", "FARCALL_FAILED_ATTEMPTS": "1", "FARCALL_JOB_ID": "fit"}
FIRST = {"FARCALL_INDEX": "1", "FARCALL_CANCELLABLE": "1", "FARCALL_JOB_ID": "fit"}


@pytest.mark.parametrize("told", [AGAIN, FIRST], ids=["again", "first"])
def test_a_task_that_was_cancelled_runs_nothing(attempt, tmp_path, told):
    ran = tmp_path / "ran"
    made = attempt(touch, str(ran), tasks=3)
    mark(made, 1)
    code, _ = made.start(environment=told).end()
    assert ExitCode.CANCELLED == code
    assert not ran.exists()
    assert made.outcome(made.where.outcome_key(1)) is None


@pytest.mark.parametrize("told", [AGAIN, FIRST], ids=["again", "first"])
def test_others_marks_cancel_nothing(attempt, tmp_path, told):
    ran = tmp_path / "ran"
    made = attempt(touch, str(ran), tasks=3)
    mark(made, 2)
    mark(made, 1, key=bytes(32))
    code, _ = made.start(environment=told).end()
    assert ExitCode.RETURNED == code
    assert ran.exists()
    outcome = made.outcome(made.where.outcome_key(1))
    assert "fit:1" == outcome.meta["job_id"]
