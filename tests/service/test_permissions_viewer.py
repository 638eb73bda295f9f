"""Commands with the viewer policy of docs/iam.

Starts a local AWS emulator that enforces IAM.
"""

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
    """A failed, a running and a waiting job; the user may only view and cancel them."""
    account.use(monkeypatch)
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


class Viewer:
    """Runs commands as a viewer."""

    def __init__(self, commands):
        self.run = commands.run

    def described(self, job_id):
        done = self.run("describe", job_id, "--json")
        return json.loads(done.stdout) if done.returncode == 0 else done.stderr


@pytest.fixture
def viewer(commands):
    return Viewer(commands)


@pytest.mark.slow
async def test_viewer_cannot_submit(jobs, viewer):
    failed, running, waiting = jobs
    listed = json.loads(viewer.run("list", "--json").stdout)
    assert {job["id"] for job in listed} >= set(jobs)
    assert viewer.described(failed)["explanation"]["error"] == "LookupError"
    assert viewer.described(waiting)["position"] == 1
    assert viewer.run("logs", failed).stdout == "before the error\n"
    assert "asleep" in viewer.run("logs", running).stdout
    done = viewer.run("run", "-o", "vcpu=1", "os:getcwd")
    assert done.returncode == 4
    assert "not authorized" in done.stderr
    done = viewer.run("cancel", waiting, running)
    assert (done.returncode, done.stderr) == (0, "")
