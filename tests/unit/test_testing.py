"""What test suites of users' code shorten, and for whom."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from farcall import Settings
from farcall.aws.clients import Aws
from farcall.testing import Timing, use_timing

SETTINGS = Settings(endpoint_url="http://127.0.0.1:9", region="us-east-1")


@pytest.fixture(autouse=True)
def _keys(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


async def opened_with():
    aws = await Aws.open(SETTINGS)
    await aws.close()
    return aws.timing


async def test_the_real_ones_are_in_force_unless_somebody_says_otherwise():
    assert await opened_with() == Timing()


async def test_what_is_opened_in_a_block_has_its_timing_and_keeps_it():
    short = replace(Timing.fast(), read_timeout_s=1.5)
    with use_timing(Timing.fast()):
        with use_timing(short):
            aws = await Aws.open(SETTINGS)
        assert await opened_with() == Timing.fast()
    assert aws.timing == short
    assert aws.batch.meta.config.read_timeout == 1.5
    await aws.close()
    assert await opened_with() == Timing()


async def test_a_block_counts_for_other_threads_and_ends_by_an_error_too():
    found = []
    with pytest.raises(LookupError), use_timing(Timing.fast()):
        found.append(await asyncio.to_thread(asyncio.run, opened_with()))
        raise LookupError
    assert found == [Timing.fast()]
    assert await opened_with() == Timing()
