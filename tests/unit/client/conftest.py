"""Fixtures: a session on a scripted Batch with an in-memory bucket, a clock and a terminal."""

import sys

import pytest

from farcall import BatchPoolExecutor
from farcall.client import progress
from farcall.client.bars import Bar
from farcall.engine import run
from farcall.engine.session import Session
from tests.unit.fakes import access_in_memory
from tests.unit.terminals import Screen
from tests.unit.tracking import Jobs


class Now:
    """A clock that a test advances."""

    def __init__(self):
        self.seconds = 1000.0

    def monotonic(self):
        return self.seconds


@pytest.fixture
def now(monkeypatch):
    made = Now()
    monkeypatch.setattr(progress, "time", made)
    return made


@pytest.fixture
def screen(monkeypatch):
    """Replace stderr with a terminal of 100 columns, whatever the environment variables are."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")

    def install(made=None):  # in the test itself: pytest sets stderr before it
        made = Screen() if made is None else made
        monkeypatch.setattr(sys, "stderr", made)
        return made

    monkeypatch.setattr(Bar, "_shared", None)
    yield install
    assert Bar._shared is None


@pytest.fixture
def make_pool(cloud):
    """Create pools that gather calls for only 0.02 s."""

    def make(*args, **options):
        return BatchPoolExecutor(*args, **{"linger_s": 0.02, "retry_attempts": 1, **options})

    return make


@pytest.fixture
def jobs():
    """Jobs of the scripted Batch."""
    return Jobs()


@pytest.fixture
async def session(jobs, monkeypatch):
    """Session of the current event loop."""
    made = Session(access_in_memory(), jobs.backend)

    async def find(settings):
        return made

    monkeypatch.setattr(run, "session_for", find)
    yield made
    await made.close()
