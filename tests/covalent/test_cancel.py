"""Cancel of a running electron: through Covalent, and with ``farcall cancel``.

Starts the shared Covalent server on the local AWS emulator, because only the server knows
whether the electron is CANCELLED. All other rules are in tests/unit/covalent. Slow, because a
Covalent server takes seconds to start.
"""

from __future__ import annotations

import os
import subprocess
import time

import boto3
import covalent as ct
import pytest

from tests.support.commands import FARCALL
from tests.support.patience import until
from tests.support.proxy import Proxy

UNDER_WAY = ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING")


@pytest.fixture(scope="module")
def aws(embedded):
    return embedded


@pytest.fixture(scope="module")
def proxy(aws):
    with Proxy(aws.endpoint_url) as running:
        yield running


@pytest.fixture(autouse=True)
def client(aws, monkeypatch):
    """A Batch client; the teardown waits until no job is running."""
    for name, value in aws.environment.items():
        monkeypatch.setenv(name, value)
    found = boto3.client("batch")
    yield found
    aws.configure(delays={})
    until(lambda: not under_way(found))


def under_way(client, *states):
    """List unfinished jobs, with one entry per array job."""
    return [
        job["jobId"]
        for state in states or UNDER_WAY
        for job in client.list_jobs(jobQueue="farcall-local", jobStatus=state)["jobSummaryList"]
    ]


@pytest.fixture
def batch(client, proxy):
    """Make an executor for small jobs: ``batch(**options)``."""
    small = {"vcpu": 1, "memory": 1, "linger_s": 0.02, "poll_freq": 1, "endpoint_url": proxy.url}
    return lambda **options: ct.executor.AWSBatchExecutor(**{**small, **options})


class Folder:
    """A folder in which each task writes its job's ID before it waits."""

    def __init__(self, path):
        self.path = path

    def task(self, executor, name="work"):
        """Return an electron that waits until it is stopped, and prints the exception."""
        path = self.path

        def work(number=0, *_):
            print(f"task {number} begins", flush=True)
            mark = path / f".{number}"
            mark.write_text(os.environ["AWS_BATCH_JOB_ID"])
            mark.rename(path / f"job-{number}")
            try:
                while True:
                    time.sleep(0.02)
            except KeyboardInterrupt as error:
                time.sleep(0.3)
                print(f"task {number} cleans up: {type(error).__name__}")
                raise

        work.__name__ = name
        return ct.electron(work, executor=executor)

    def jobs(self, *numbers):
        """Wait until tasks run; return the IDs of their jobs."""
        marks = [self.path / f"job-{number}" for number in numbers]
        until(lambda: all(mark.exists() for mark in marks))
        return [mark.read_text() for mark in marks]


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "folder"
    path.mkdir()
    return Folder(path)


def detail(client, job_id):
    (found,) = client.describe_jobs(jobs=[job_id])["jobs"]
    return found


def cancel_by_command(job_id):
    done = subprocess.run([FARCALL, "cancel", job_id], capture_output=True, text=True, check=True)
    assert f"{job_id} was running and is being cancelled\n" == done.stdout


@pytest.fixture
def cancel():
    """Cancel node 0 of a dispatch, which runs a job: ``cancel(way, dispatch_id, job_id)``."""
    ways = {
        "dispatch": lambda dispatch_id, _: ct.cancel(dispatch_id),
        "command": lambda _, job_id: cancel_by_command(job_id),
    }
    return lambda way, dispatch_id, job_id: ways[way](dispatch_id, job_id)


@pytest.mark.parametrize("way", [pytest.param("dispatch", marks=pytest.mark.path), "command"])
def test_cancelled_electron_keeps_output(dispatch, wait, node, batch, folder, client, cancel, way):
    work = folder.task(batch(retry_attempts=3))

    @ct.lattice
    def flow():
        return work(0)

    started = dispatch(flow)
    (job_id,) = folder.jobs(0)
    cancel(way, started, job_id)

    result = wait(started)
    assert ct.status.CANCELLED == result.status
    found = node(result, 0)
    assert "CANCELLED" == found.status
    assert "task 0 begins\ntask 0 cleans up: TaskTerminated\n" == found.stdout
    assert "JobCancelledError: the job was cancelled" in found.error
    assert job_id in found.error
    until(lambda: "FAILED" == detail(client, job_id)["status"])
    assert 1 == len(detail(client, job_id)["attempts"])
