"""Container attempts under network faults, signals and broken surroundings.

Starts the runtime as a process, because exit codes, signals and streams belong to a process.
"""

import atexit
import multiprocessing
import os
import re
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
    """A task that prints that it has started, and ends when a file appears."""
    print("started", flush=True)
    while not Path(path).exists():
        time.sleep(0.02)
    print("ended")
    return 7


def started(made):
    """Wait until the task has printed that it has started."""
    made.process.stdout.readline()


def test_working_directory_comes_last_on_path(attempt, tmp_path):
    """A module in it is found, but cannot shadow the standard library."""
    (tmp_path / "own_module.py").write_text("import decimal, pickle, statistics\nanswer = 42")
    for module in ("json", "pickle", "statistics"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit(3)")

    def work():
        import own_module

        return own_module.answer

    made = attempt(work).start(cwd=tmp_path)
    assert (0, "") == made.end()
    assert value_of(made.outcome()) == 42


# --- network faults during the upload --------------------------------------------------------


@pytest.mark.parametrize("fault", ["refuse", "hang"])
def test_lost_network_has_exit_code(attempt, proxy, tmp_path, fault):
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
def test_outcome_is_stored_once_despite_faults(attempt, proxy, faults):
    left = proxy.faults["s3 * outcomes"]
    left += faults
    made = attempt(lambda: 7)

    assert (0, "") == made.start().end()
    assert not left
    assert 1 == proxy.answers["s3 PUT outcomes 200"]
    assert [7] == [value_of(made.outcome())]


def test_expired_credentials_are_refreshed(aws, attempt, proxy, tmp_path):
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


def test_denied_upload_is_not_retried(attempt, proxy):
    proxy.lasting["s3 PUT *"] = "denied"
    made = attempt(lambda: 7).start()

    code, stderr = made.end()
    assert ExitCode.OUTCOME_NOT_STORED == code
    assert "AccessDenied" in stderr
    assert 1 == proxy.counts["s3 PUT outcomes"]


# --- SIGTERM ----------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["hang"])
def test_sigterm_ends_hanging_download(attempt, proxy, fault):
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
def test_sigterm_stores_output_of_stopped_task(attempt, phase):
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


def wait_until_stopped(late=None):
    """A task that prints why it was stopped.

    Args:
        late: File that makes the time limit expire.
    """
    try:
        print("started", flush=True)
        if late is not None:
            Path(late).touch()
        time.sleep(60)  # until the test, or what it tests, ends it
    except KeyboardInterrupt as error:
        print(error)
        raise


def stop_reasons(made, outcome):
    """Return the reasons that a stopped function has printed."""
    started, *lines = made.stdout(outcome).decode().splitlines()
    assert started == "started"
    return lines


def test_timed_out_function_gets_reason(late):
    made = late(wait_until_stopped, late.trigger)

    assert ExitCode.TIMED_OUT == made.end()[0]
    (why,) = stop_reasons(made, made.outcome())
    sentence = r"the job reached its time limit of 600 s; its process is killed in \d+(\.\d+)? s"
    assert re.fullmatch(sentence, why)


def test_stopped_function_gets_reason(attempt):
    made = attempt(wait_until_stopped, time_limit=300).start(stdout=subprocess.PIPE)
    started(made)

    made.process.terminate()

    assert ExitCode.TERMINATED == made.end()[0]
    (why,) = stop_reasons(made, made.stopped_outcome())
    assert why.startswith("AWS Batch is stopping this job (cancelled, terminated, or")
    assert re.search(r"; its process is killed in \d+ s$", why)


def test_stubborn_function_is_killed_with_output(late):
    def work(late):
        print("started", flush=True)
        while True:
            try:
                Path(late).touch()  # the signal may come before sleep begins
                time.sleep(60)  # forever: the container must kill it
            except KeyboardInterrupt:
                print("ignored", flush=True)

    made = late(work, late.trigger, time_limit=100)  # the grace period is 5 s of it

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
def test_index_without_task_runs_nothing(attempt, tasks, number, said):
    made = attempt(lambda: 7, tasks=tasks).start(environment={"AWS_BATCH_JOB_ARRAY_INDEX": number})

    assert ExitCode.BAD_ENVIRONMENT == made.end()[0]
    outcome = made.outcome(made.where.outcome_key(int(number or 0)))
    assert "refused" == outcome.meta["status"]
    sentence = f"the job has {tasks} tasks, but AWS_BATCH_JOB_ARRAY_INDEX {said}"
    assert sentence == outcome.meta["detail"]


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", "2>&-"])
def test_container_without_streams_runs_task(attempt, closed):
    def work():
        print("to stdout", flush=True)
        print("to stderr", file=sys.stderr)
        return 7

    made = attempt(work).start(wrapper=("sh", "-c", f'exec "$@" {closed}', "sh"))

    assert (0, "") == made.end()
    outcome = made.outcome()
    assert (b"to stdout\n", b"to stderr\n") == (bytes(outcome.stdout), bytes(outcome.stderr))


@pytest.mark.parametrize("stays", ["process", "handler", "flush"])
def test_leftover_process_does_not_delay_result(attempt, stays):
    def work(stays):
        print("returns", flush=True)
        if stays == "process":  # `multiprocessing` waits for it at exit
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
def test_broken_supervisor_has_own_exit_code(attempt, broken):
    entry = f"import resource, sys; from farcall_runtime import __main__; {broken}\n"
    entry += "__main__.leave(__main__.main())"
    made = attempt(lambda: 7).start(entry=("-c", entry))

    code, stderr = made.end()
    assert ExitCode.SUPERVISOR_FAILED == code
    assert "Traceback" in stderr


# --- a cancelled array task -------------------------------------------------------------------


def touch(path):
    Path(path).touch()


def mark(made, index, key=None):
    name = made.where.cancelled_key(index)
    made.put(name, b"".join(envelope.seal_note(key or made.key, name, {"reason": "enough"})))


AGAIN = {"FARCALL_INDEX": "1", "FARCALL_FAILED_ATTEMPTS": "1", "FARCALL_JOB_ID": "fit"}
FIRST = {"FARCALL_INDEX": "1", "FARCALL_CANCELLABLE": "1", "FARCALL_JOB_ID": "fit"}


@pytest.mark.parametrize("told", [AGAIN, FIRST], ids=["again", "first"])
def test_cancelled_task_runs_nothing(attempt, tmp_path, told):
    ran = tmp_path / "ran"
    made = attempt(touch, str(ran), tasks=3)
    mark(made, 1)
    code, _ = made.start(environment=told).end()
    assert ExitCode.CANCELLED == code
    assert not ran.exists()
    assert made.outcome(made.where.outcome_key(1)) is None


@pytest.mark.parametrize("told", [AGAIN, FIRST], ids=["again", "first"])
def test_foreign_cancel_marker_is_ignored(attempt, tmp_path, told):
    ran = tmp_path / "ran"
    made = attempt(touch, str(ran), tasks=3)
    mark(made, 2)
    mark(made, 1, key=bytes(32))
    code, _ = made.start(environment=told).end()
    assert ExitCode.RETURNED == code
    assert ran.exists()
    outcome = made.outcome(made.where.outcome_key(1))
    assert "fit:1" == outcome.meta["job_id"]
