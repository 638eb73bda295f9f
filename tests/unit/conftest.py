"""Fixtures: virtual time, a fake cloud, and a container without the user's modules."""

import asyncio
import importlib

import pytest

from farcall import BatchExecutor
from farcall.client.loop_thread import close_shared
from farcall.config.settings import set_default_bucket
from farcall.engine.session import session_for
from farcall.testing import Timing, fake_cloud
from tests.support.timing import marked
from tests.unit.fakes import Clock, Container
from tests.unit.project import imported
from tests.unit.tracking import World


@pytest.fixture(autouse=True)
def _bucket():
    """Default bucket, which the options of most tests omit."""
    set_default_bucket("bucket")
    yield
    set_default_bucket("")


@pytest.fixture
def timing(request):
    """The real waits and limits, except those that a test overrides with a marker."""
    return marked(Timing(), request)


@pytest.fixture
def cloud():
    """A fake cloud; sessions that synchronous code opened on it are closed with it."""
    with fake_cloud() as opened:
        yield opened
        close_shared()


@pytest.fixture
async def clock():
    """Clock of the running event loop, which advances whenever the loop is idle.

    At the end of the loop, real time is restored, because the loop waits for threads.
    """
    with pytest.MonkeyPatch.context() as changes:
        yield Clock(asyncio.get_running_loop(), changes)


@pytest.fixture
async def world(clock, timing):
    """A tracker with its scripted S3 and Batch."""
    made = World(clock, timing)
    yield made
    await made.tracker.close()


@pytest.fixture(scope="session")
def container():
    """A process in which only the runtime is installed."""
    made = Container()
    yield made
    made.close()


@pytest.fixture
def remote(container):
    """Function that runs a function in the container and returns its
    `farcall.payload.results.Result`."""
    return container.call


@pytest.fixture
def models(tmp_path):
    """The module `labkit.models` of a user's project, which the container does not have."""
    with imported(tmp_path):
        yield importlib.import_module("labkit.models")


@pytest.fixture
async def executor(cloud):
    """Executor of small jobs with one attempt on the fake cloud."""
    async with BatchExecutor(vcpu=1, memory=1, retry_attempts=1, linger_s=0.02) as opened:
        yield opened


@pytest.fixture
async def session(executor):
    """Session on the fake cloud."""
    return await session_for(executor.settings)
