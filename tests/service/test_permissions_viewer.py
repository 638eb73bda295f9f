"""docs/iam/viewer.json is enough to see jobs and to end them, and holds nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import farcall.local
from farcall import BatchExecutor
from tests.support.iam import Enforced, actions, policy, without

FARCALL = Path(sys.executable).with_name("farcall")


@pytest.fixture(scope="module")
def account():
    with farcall.local.start(enforce_iam=True, cpus=1) as aws:
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


def command(*arguments):
    return subprocess.run(
        [FARCALL, *arguments], capture_output=True, text=True, check=False, env=os.environ
    )


def said(*arguments):
    done = command(*arguments)
    return done.stdout + done.stderr


def described(job_id):
    done = command("describe", job_id, "--json")
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr


async def test_who_may_look_sees_and_ends_jobs_and_submits_none(jobs):
    failed, running, waiting = jobs
    listed = json.loads(command("list", "--json").stdout)
    assert {job["id"] for job in listed} >= set(jobs)
    assert described(failed)["explanation"]["error"] == "LookupError"
    assert described(waiting)["position"] == 1
    assert command("logs", failed).stdout == "before the error\n"
    assert "asleep" in command("logs", running).stdout
    done = command("run", "-o", "vcpu=1", "os:getcwd")
    assert done.returncode == 4
    assert "not authorized" in done.stderr
    done = command("cancel", waiting, running)
    assert (done.returncode, done.stderr) == (0, "")


WITHOUT = {
    "batch:DescribeJobs": lambda failed, _: "DescribeJobs" in described(failed),
    "batch:ListJobs": lambda *_: "ListJobs" in command("list").stderr,
    "batch:GetJobQueueSnapshot": lambda _, waiting: described(waiting)["position"] is None,
    "batch:TerminateJob": lambda _, waiting: "TerminateJob" in said("cancel", waiting),
    "s3:GetObject": lambda failed, _: "GetObject" in command("logs", failed).stderr,
    "s3:ListBucket": lambda failed, _: "ListObjectsV2" in command("logs", failed).stderr,
    "s3:DeleteObject": lambda failed, _: command("logs", "-f", failed).returncode == 0,
    "s3:PutObject": lambda failed, _: command("logs", "-f", failed).returncode == 0,
    "logs:GetLogEvents": lambda failed, _: command("logs", failed).returncode == 0,
}


def test_each_action_is_looked_at():
    assert sorted(set(actions(policy("viewer")))) == sorted(WITHOUT)


async def test_without_an_action_it_is_named_or_not_missed(account, jobs):
    failed, _, waiting = jobs
    for action, holds in WITHOUT.items():
        account.set_policy("client", without(policy("viewer"), action))
        assert holds(failed, waiting), action
