"""Commands with the viewer policy of docs/iam.

Starts a local AWS emulator that enforces IAM.
"""

from __future__ import annotations

import json
import time

import pytest

from farcall import BatchExecutor
from tests import emulators
from tests.support.iam import Enforced, policy


@pytest.fixture(scope="module")
def account():
    with emulators.start(enforce_iam=True, cpus=1) as aws:
        yield Enforced(aws)


@pytest.fixture
async def jobs(account, monkeypatch):
    """A job that failed, one that runs, and one that waits; the user may but look and end."""
    for name, value in {**account.aws.environment, **account.keys}.items():
        monkeypatch.setenv(name, value)
    account.restore()
    async with BatchExecutor(vcpu=1, memory=1, retry_attempts=1) as executor:
        failed = await executor.submit(fail)
        assert isinstance(await failed.exception(), LookupError)
        running = await executor.submit(sleep)
        while "asleep" not in await running.stdout():
            pass
        waiting = await executor.submit(sleep)
        account.set_policy("client", policy("viewer"))
        yield failed.id, running.id, waiting.id
        account.restore()
        await running.cancel()
        await waiting.cancel()
        await running.wait()
        await waiting.wait()


def fail():
    print("before the error", flush=True)
    raise LookupError("on purpose")


def sleep():
    print("asleep", flush=True)
    time.sleep(600)  # until the test ends it


class Looking:
    """Output of a viewer's commands."""

    def __init__(self, commands):
        self.run = commands.run

    def described(self, job_id):
        done = self.run("describe", job_id, "--json")
        return json.loads(done.stdout) if done.returncode == 0 else done.stderr


@pytest.fixture
def looking(commands):
    return Looking(commands)


@pytest.mark.slow
async def test_who_may_look_sees_and_ends_jobs_and_submits_none(jobs, looking):
    failed, running, waiting = jobs
    listed = json.loads(looking.run("list", "--json").stdout)
    assert {job["id"] for job in listed} >= set(jobs)
    assert looking.described(failed)["explanation"]["error"] == "LookupError"
    assert looking.described(waiting)["position"] == 1
    assert looking.run("logs", failed).stdout == "before the error\n"
    assert "asleep" in looking.run("logs", running).stdout
    done = looking.run("run", "-o", "vcpu=1", "os:getcwd")
    assert done.returncode == 4
    assert "not authorized" in done.stderr
    done = looking.run("cancel", waiting, running)
    assert (done.returncode, done.stderr) == (0, "")
