"""The policies of docs/iam suffice for a container with its role's credentials.

Starts a container on the local AWS emulator with permissions enforced, because the runtime's
requests use the credentials endpoint there.
"""

from __future__ import annotations

import pytest

from farcall import BatchExecutor
from tests import emulators
from tests.support.iam import Enforced


@pytest.fixture(scope="module")
def enforced(image):
    with emulators.start(cpus=4, docker=True, enforce_iam=True) as aws:
        yield Enforced(aws)


@pytest.fixture
def executor(enforced, image, monkeypatch):
    """An executor with the credentials of the client's user."""
    enforced.use(monkeypatch)
    yield BatchExecutor(vcpu=1, memory=0.5, retry_attempts=1, linger_s=0.02, image=image)
    enforced.restore()


@pytest.mark.path
async def test_job_runs_with_documented_policies(executor):
    def work(number: int) -> int:
        print(number)
        return number * number

    async with executor:
        job = await executor.submit(work, 7)
        assert await job.result() == 49
        assert await job.stdout() == "7\n"
        assert await executor.task(work).map(range(3)) == [0, 1, 4]
