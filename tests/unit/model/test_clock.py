"""Waiting with a time limit, without swallowing cancellations."""

import asyncio

import pytest

from farcall.model.clock import within

pytestmark = pytest.mark.usefixtures("clock")


async def test_result_in_time_is_returned():
    assert await within(1, asyncio.sleep(0.9, "value")) == "value"


async def test_error_in_time_is_raised():
    async def fail():
        raise LookupError

    with pytest.raises(LookupError):
        await within(1, fail())


async def test_late_task_is_cancelled():
    events = []

    async def last():
        try:
            await asyncio.sleep(2)
        finally:
            await asyncio.sleep(0.1)
            events.append("cleaned up")

    with pytest.raises(TimeoutError):
        await within(1, last())
    assert events == ["cleaned up"]


@pytest.mark.parametrize("ends", ["early", "together", "with an error"])
async def test_cancellation_is_never_swallowed(ends, recwarn):
    event, events = asyncio.Event(), []

    async def wait():
        try:
            await event.wait()
            if ends == "with an error":
                raise ValueError
        except asyncio.CancelledError:
            events.append("cancelled")
            raise

    async def loop():
        while True:
            await within(600, wait())

    looping = asyncio.ensure_future(loop())
    await asyncio.sleep(1)
    if ends != "early":
        event.set()
    looping.cancel()
    await asyncio.wait([looping], timeout=60)
    assert looping.cancelled()
    assert events == (["cancelled"] if ends == "early" else [])
