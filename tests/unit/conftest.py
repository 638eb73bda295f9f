"""Time that passes by itself, and a container without the user's modules."""

from __future__ import annotations

import asyncio
import importlib

import pytest

from farcall.client.loop_thread import close_shared
from farcall.model.settings import set_default_bucket
from farcall.testing import Timing, fake_cloud
from tests.support.timing import marked
from tests.unit.fakes import Clock, Container
from tests.unit.project import imported
from tests.unit.tracking import World


@pytest.fixture(autouse=True)
def _bucket():
    """What the options of most tests leave out."""
    set_default_bucket("bucket")
    yield
    set_default_bucket("")


@pytest.fixture
def timing(request):
    """The real waits and limits, except those that a test names by a mark."""
    return marked(Timing(), request)


@pytest.fixture
def cloud():
    """A fake cloud; what code without async has open on it is closed with it."""
    with fake_cloud() as opened:
        yield opened
        close_shared()


@pytest.fixture
async def clock():
    """Let the time of the running event loop pass whenever nothing is left to do.

    The end of the loop has its own time again: it waits for threads, which have no other.
    """
    with pytest.MonkeyPatch.context() as changes:
        yield Clock(asyncio.get_running_loop(), changes)


@pytest.fixture
async def world(clock, timing):
    """A tracker, and the S3 and Batch that it asks."""
    made = World(clock, timing)
    yield made
    await made.tracker.close()


@pytest.fixture(scope="session")
def container():
    """Where only the runtime is installed."""
    made = Container()
    yield made
    made.close()


@pytest.fixture
def remote(container):
    """Run a function there; give the `farcall.payload.results.Result`."""
    return container.call


@pytest.fixture
def models(tmp_path):
    """The module ``labkit.models`` of a user's project, which the container has never seen."""
    with imported(tmp_path):
        yield importlib.import_module("labkit.models")
