"""Fixtures for the command line."""

from __future__ import annotations

import asyncio
import os
import subprocess

import pytest

from farcall.config.settings import Settings
from farcall.engine.session import session_for
from tests.support.commands import FARCALL


@pytest.fixture
def farcall_command(commands):
    """Run ``farcall`` with arguments and additional environment variables."""

    async def run(*arguments: object, **options: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(commands.run, *arguments, **options)

    return run


@pytest.fixture
def farcall(farcall_command):
    """Run ``farcall``; return its exit code, stdout and stderr."""

    async def run(*arguments: object, **options: str) -> tuple[int, str, str]:
        done = await farcall_command(*arguments, **options)
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.fixture
def installed_command():
    """Run the installed command in a process, which takes half a second longer."""

    async def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(
            subprocess.run,
            [FARCALL, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **environment},
        )

    return run


@pytest.fixture
async def session(aws):
    """A client session that submits command jobs."""
    opened = await session_for(Settings())
    yield opened
    await opened.close()


@pytest.fixture
def account(whole, monkeypatch, commands):
    """Provide a module's empty account, and check that it is empty afterwards."""
    for name, value in whole.aws.environment.items():
        monkeypatch.setenv(name, value)
    yield whole
    done = commands.run("destroy", "--yes", "--empty-bucket")
    assert (0, {}) == (done.returncode, whole.aws.resources()), done.stderr
