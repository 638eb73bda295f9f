"""The embedded AWS, executors on it, and the command as it is installed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import farcall.local
from farcall import BatchExecutor

FARCALL = Path(sys.executable).with_name("farcall")


@pytest.fixture(scope="session")
def embedded() -> Iterator[farcall.local.LocalAWS]:
    with farcall.local.start() as aws:
        yield aws


@pytest.fixture
def aws(
    embedded: farcall.local.LocalAWS, monkeypatch: pytest.MonkeyPatch
) -> farcall.local.LocalAWS:
    """An embedded AWS, with the environment set to it."""
    for name, value in embedded.environment.items():
        monkeypatch.setenv(name, value)
    return embedded


@pytest.fixture
def options(aws: farcall.local.LocalAWS) -> dict[str, Any]:
    """Small jobs that are tried once and gathered quickly."""
    return {"vcpu": 1, "memory": 1, "retry_attempts": 1, "linger_s": 0.02}


@pytest.fixture
async def executor(options: dict[str, Any]) -> AsyncIterator[BatchExecutor]:
    async with BatchExecutor(**options) as opened:
        yield opened


@pytest.fixture
def make_executor(options: dict[str, Any]) -> Callable[..., BatchExecutor]:
    return lambda **more: BatchExecutor(**{**options, **more})


@pytest.fixture
def farcall_command() -> Callable[..., Any]:
    """Runs ``farcall`` with some arguments, and variables of the environment beside the test's."""

    async def run(
        *arguments: object, answer: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(
            subprocess.run,
            [FARCALL, *map(str, arguments)],
            input=answer,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **environment},
        )

    return run
