"""Fixtures for TorchX on the local AWS emulator: its command and its Runner."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from torchx.runner import Runner, get_runner

import farcall_local
from farcall.client.loop_thread import close_shared
from tests.support.commands import TORCHX, Commands
from tests.torchx.apps import QUEUE


@pytest.fixture(scope="session")
def torchx_commands() -> Iterator[Commands]:
    with closing(Commands(TORCHX)) as running:
        yield running


@pytest.fixture
def torchx(
    torchx_commands: Commands, aws: farcall_local.LocalAWS
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ``torchx`` with arguments."""
    return torchx_commands.run


@pytest.fixture
def launched(torchx: Callable[..., Any]) -> Callable[..., str]:
    """Run a component; return the app's handle."""

    def run(*component: str, queue: str = QUEUE) -> str:
        done = torchx(
            *("run", "-s", "aws_batch", "-cfg", f"queue={queue}", "--workspace", ""), *component
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.fixture(autouse=True)
def _own_sessions() -> Iterator[None]:
    """Close shared sessions after each test, because the environment differs."""
    yield
    close_shared()


@pytest.fixture
def runner(aws: farcall_local.LocalAWS) -> Iterator[Runner]:
    with get_runner() as made:
        yield made
