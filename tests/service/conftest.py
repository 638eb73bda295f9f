"""The embedded AWS for a whole test run, and executors on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import farcall.local
from farcall import BatchExecutor


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
