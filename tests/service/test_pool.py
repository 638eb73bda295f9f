"""Pools at the exit of their process, at Ctrl-C and after a fork.

Starts programs as processes and the local AWS emulator, because exit hooks and signals belong to a
process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import boto3
import pytest

from tests.support.patience import PATIENCE_S, until

_BEGIN = """
import os, signal, sys, threading, time
import farcall
signal.signal(signal.SIGINT, signal.default_int_handler)
gate = sys.argv[1]
def wait_at_gate():
    while not os.path.exists(gate):
        time.sleep(0.02)
    return "waited"
def begun(*futures):
    while not all(future.running() for future in futures):
        time.sleep(0.01)
    print("begun", flush=True)
options = {"vcpu": 1, "memory": 1, "retry_attempts": 1, "linger_s": 0.02}
pool = farcall.BatchPoolExecutor(**options)
"""

_ALIVE = ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING")


@pytest.fixture
def script(aws, gate):
    """Run a script with a pool, whose calls can wait for the gate."""

    @contextmanager
    def run(text: str) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(
            [sys.executable, "-c", _BEGIN + text, str(gate)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    return run


def unfinished_jobs() -> list[str]:
    """Return the IDs of this module's unfinished jobs; other tests' jobs are in the queue, too."""
    named = {"name": "JOB_NAME", "values": ["wait_at_gate*"]}
    listed = boto3.client("batch").list_jobs(jobQueue=os.environ["FARCALL_QUEUE"], filters=[named])
    return [job["jobId"] for job in listed["jobSummaryList"] if job["status"] in _ALIVE]


@pytest.mark.core
def test_process_exit_waits_for_calls(script, gate):
    text = """
future = pool.submit(wait_at_gate)
future.add_done_callback(lambda future: print(future.result(), flush=True))
begun(future)
del pool
"""
    with script(text) as process:
        assert process.stdout.readline() == "begun\n"
        assert (
            "waiting for 1 unfinished call before the process exits" in process.stderr.readline()
        )
        gate.touch()
        said, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, said, errors) == (0, "waited\n", "")


@pytest.mark.slow
def test_ctrl_c_during_exit_cancels_jobs(script):
    with script("future = pool.submit(wait_at_gate)\nbegun(future)\n") as process:
        assert process.stdout.readline() == "begun\n"
        assert "waiting for 1 unfinished call" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert "cancelled 1 unfinished call" in errors
    assert "Traceback" not in errors
    until(lambda: not unfinished_jobs())


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            "with pool:\n    future = pool.submit(wait_at_gate)\n    begun(future)\n",
            id="while it leaves",
        ),
        pytest.param(
            "begun()\nfarcall.BatchExecutor(**options).task(wait_at_gate).run()\n",
            id="in run",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_ctrl_c_cancels_jobs(script, text):
    with script(text) as process:
        assert process.stdout.readline() == "begun\n"
        if "future" not in text:
            until(unfinished_jobs)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -signal.SIGINT
    assert "(interrupted by Ctrl-C)" in errors
    assert "\ncancelled " in errors
    assert errors.rstrip().endswith("KeyboardInterrupt")
    until(lambda: not unfinished_jobs())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no forks")
def test_forked_child_cannot_use_pool(script, gate):
    text = """
future = pool.submit(wait_at_gate)
begun(future)
child = os.fork()
if not child:
    for use in (future.result, future.exception, future.cancel, lambda: pool.submit(wait_at_gate)):
        try:
            use()
        except RuntimeError as error:
            print(error, flush=True)
    pool.__exit__(None, None, None)
    print([thread.name for thread in threading.enumerate()], flush=True)
    os._exit(0)
os.waitpid(child, 0)
open(gate, "w").close()
print(future.result(), flush=True)
"""
    with script(text) as process:
        said, _ = process.communicate(timeout=PATIENCE_S)
    _, *refused, threads, last = said.splitlines()
    assert ["belongs to the parent process" in line for line in refused] == [True] * 4
    assert threads == "['MainThread']"
    assert last == "waited"
