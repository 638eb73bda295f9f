"""Cancel of a running electron: through Covalent, and with ``farcall cancel``.

Starts the shared Covalent server on the local AWS emulator, because only the server knows
whether the electron is CANCELLED. All other rules are in tests/unit/covalent. Slow, because a
Covalent server takes seconds to start.
"""

import os
import subprocess
import time

import boto3
import covalent as ct
import pytest

from tests.support.commands import FARCALL
from tests.support.patience import until

UNDER_WAY = ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING")


@pytest.fixture(autouse=True)
def client(batch):
    """A Batch client; the teardown waits until no job is running."""
    found = boto3.client("batch")
    yield found
    until(lambda: not under_way(found))


def under_way(client, *states):
    """List unfinished jobs, with one entry per array job."""
    return [
        job["jobId"]
        for state in states or UNDER_WAY
        for job in client.list_jobs(jobQueue="farcall-local", jobStatus=state)["jobSummaryList"]
    ]


@pytest.fixture
def waiting(tmp_path):
    """Return an electron that waits until it is stopped, and prints the exception."""

    def make(executor):
        path = tmp_path

        def work(number):
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

        return ct.electron(work, executor=executor)

    return make


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
def test_cancelled_electron_keeps_output(
    dispatch, wait, node, batch, waiting, jobs, client, cancel, way
):
    work = waiting(batch(retry_attempts=3))

    @ct.lattice
    def flow():
        return work(0)

    started = dispatch(flow)
    (job_id,) = jobs(0)
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
