"""Ctrl-C in client programs.

Starts client programs as processes and the local AWS emulator, because only a process gets SIGINT.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import boto3
import pytest

import farcall_local
from tests.support.patience import PATIENCE_S, until
from tests.support.proxy import Proxy

TERMINATE = ("terminatejob", "terminatejobs")
#: Runs one of `WAYS`. It sets a SIGINT handler, because a shell's background jobs ignore SIGINT.
CLIENT = """
import asyncio, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
import farcall

executor = farcall.BatchExecutor(vcpu=1, memory=1, retry_attempts=1, linger_s=0.1)

@executor.task
def sleep(number):
    time.sleep(600)  # until Ctrl-C, or the test, ends it

async def main():
    async with executor:
        {way}

asyncio.run(main())
"""

WAYS = {
    "sweep": "await sleep.map(range(5000))",
    "jobs": "[await executor.submit(time.sleep, 600) for _ in range(20)]; await asyncio.sleep(99)",
    "command": "await (await executor.command('any', ['sleep', '600'], name='sleep')).wait()",
}


@pytest.fixture
def batch(aws, monkeypatch):
    """A proxy between the clients and Batch."""
    with Proxy(aws.endpoint_url) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL_BATCH", proxy.url)
        yield proxy


@pytest.fixture
def followed(batch):
    """IDs of the jobs that a client polls, so it has received their SubmitJob responses."""
    found: set[str] = set()
    batch.changes["describejobs"] = lambda answer: found.update(
        job["jobId"].partition(":")[0] for job in answer["jobs"]
    )
    return found


@pytest.fixture
def start(tmp_path):
    started = []

    def start(way: str) -> subprocess.Popen[bytes]:
        script = tmp_path / "client.py"
        script.write_text(CLIENT.format(way=WAYS[way]))
        process = subprocess.Popen(
            [sys.executable, script], env=os.environ, stderr=subprocess.PIPE
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def jobs(aws: farcall_local.LocalAWS) -> dict[str, str]:
    """Return job ID to status, with one entry per array job."""
    listed = boto3.client("batch", endpoint_url=aws.endpoint_url).list_jobs(
        jobQueue=aws.environment["FARCALL_QUEUE"],
        filters=[{"name": "JOB_NAME", "values": ["sle*"]}],
    )
    return {job["jobId"]: job["status"] for job in listed["jobSummaryList"]}


@pytest.mark.parametrize(
    ("way", "count", "words"),
    [
        (
            "sweep",
            1,
            ["cancelling 5000 unfinished tasks of 1 job (", "cancelled 5000 unfinished tasks"],
        ),
        pytest.param(
            *(
                "jobs",
                20,
                ["cancelling 20 unfinished tasks of 20 jobs (", "cancelled 20 unfinished tasks"],
            ),
            marks=pytest.mark.slow,
        ),
        ("command", 1, ["cancelling 1 unfinished task of 1 job (", "cancelled 1 unfinished task"]),
    ],
)
def test_ctrl_c_cancels_jobs_with_count(aws, batch, followed, start, way, count, words):
    before = jobs(aws)
    process = start(way)
    until(lambda: len(followed) == count)

    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE_S)

    for text in words:
        assert text in said.decode()
    alone, together = (batch.answers[f"batch {name} 200"] for name in TERMINATE)
    assert (alone, together) == ((count, 0) if count == 1 else (0, 1))
    begun = jobs(aws).keys() - before.keys()
    assert len(begun) == count
    until(lambda: {jobs(aws)[job_id] for job_id in begun} == {"FAILED"})


@pytest.mark.parametrize("way", ["sweep", "jobs"])
@pytest.mark.slow
def test_second_ctrl_c_exits_immediately(aws, batch, followed, start, way):
    """The message names the jobs that were not terminated."""
    before = jobs(aws)
    batch.lasting["batch terminatejob*"] = "hang"
    process = start(way)
    until(lambda: len(followed) == (20 if way == "jobs" else 1))
    left = jobs(aws).keys() - before.keys()

    process.send_signal(signal.SIGINT)
    until(lambda: any(batch.counts[f"batch {name}"] for name in TERMINATE))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE_S)  # the request to Batch would take longer

    assert f"exited without cancelling {len(left)} job" in said.decode()
    assert any(job_id in said.decode() for job_id in left)
    assert {jobs(aws)[job_id] for job_id in left}.isdisjoint({"FAILED", "SUCCEEDED"})
    for job_id in left:
        direct = boto3.client("batch", endpoint_url=aws.endpoint_url)
        direct.terminate_job(jobId=job_id, reason="the test is over")


#: Unpickles a result until the program itself sets an event.
SLOW_VALUE = """
import asyncio, os, signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
import farcall

client, go = os.getpid(), threading.Event()

def wait(pid):
    if os.getpid() == client:
        print("reading", flush=True)
        sys.modules["__main__"].go.wait()

class Slow:
    def __reduce__(self):
        return wait, (client,)

async def main():
    async with farcall.BatchExecutor(vcpu=1, memory=1, retry_attempts=1) as executor:
        await executor.task(Slow)()

try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("left")
go.set()
"""


def test_ctrl_c_interrupts_unpickling(aws, tmp_path):
    script = tmp_path / "client.py"
    script.write_text(SLOW_VALUE)
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "reading\n"
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.communicate()
    assert said == "left\n"
    assert process.returncode == 0
