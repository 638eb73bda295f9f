"""Fixtures for TorchX on the local AWS emulator: its command and its Runner."""

from __future__ import annotations

from contextlib import closing

import pytest
from torchx.runner import get_runner

from farcall.client.loop_thread import close_shared
from tests.support.commands import TORCHX, Commands
from tests.torchx.apps import QUEUE


@pytest.fixture(scope="session")
def torchx_commands():
    with closing(Commands(TORCHX)) as running:
        yield running


@pytest.fixture
def torchx(torchx_commands, aws):
    """Run ``torchx`` with arguments."""
    return torchx_commands.run


@pytest.fixture
def launched(torchx):
    """Run a component; return the app's handle."""

    def run(*component: str, queue: str = QUEUE) -> str:
        done = torchx(
            *("run", "-s", "aws_batch", "-cfg", f"queue={queue}", "--workspace", ""), *component
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.fixture(autouse=True)
def _own_sessions():
    """Close shared sessions after each test, because the environment differs."""
    yield
    close_shared()


@pytest.fixture
def runner(aws):
    with get_runner() as made:
        yield made
