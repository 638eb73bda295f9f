"""Tasks in an image that contains Python, but not farcall.

Starts containers of the base image, because the runtime and its packages must come from the
bucket.
"""

from __future__ import annotations

import sys

import pytest

from farcall import BatchExecutor
from tests import emulators
from tests.support.iam import Enforced


@pytest.fixture(scope="module")
def enforced(base_image):
    with emulators.start(cpus=4, docker=True, enforce_iam=True) as aws:
        aws.configure(stream_s=0.1)
        yield Enforced(aws)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def stock(enforced, base_image, cache, monkeypatch):
    """Options of jobs in the base image; sets the credentials of the client's user."""
    enforced.use(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    yield {
        "vcpu": 1,
        "memory": 0.5,
        "retry_attempts": 1,
        "linger_s": 0.02,
        "image": "",
        "stock_image_uri": base_image,
    }
    enforced.restore()


@pytest.mark.path
async def test_stock_image_runs_calls_and_maps(stock):
    def work(number: int) -> tuple[int, int, str]:
        import os

        if number < 0:
            raise LookupError(f"no {number}")
        print("to stdout")
        print("to stderr", file=sys.stderr)
        return number * number, os.getuid(), os.environ["HOME"]

    async with BatchExecutor(**stock) as executor:
        job = await executor.submit(work, 7)
        assert await job.result() == (49, 10001, "/tmp")
        assert (await job.stdout(), await job.stderr()) == ("to stdout\n", "to stderr\n")
        assert [value for value, *_ in await executor.task(work).map(range(3))] == [0, 1, 4]
        with pytest.raises(LookupError, match="no -1"):
            await executor.task(work)(-1)
