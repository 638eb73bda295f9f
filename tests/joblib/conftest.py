"""Fixtures for joblib on the local AWS emulator."""

import joblib
import pytest

import farcall.joblib  # noqa: F401 - registers the backend
from farcall.client.loop_thread import close_shared


@pytest.fixture(autouse=True)
def _own_sessions():
    """Close shared sessions after each test, because the environment differs."""
    yield
    close_shared()


@pytest.fixture
def on_batch(options):
    """Return a context manager whose ``Parallel`` calls run on Batch."""
    return lambda **more: joblib.parallel_config(backend="farcall", **{**options, **more})
