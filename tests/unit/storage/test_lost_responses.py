"""Responses that a thread of obstore could not pass to the event loop."""

import asyncio
import sys

import pytest

from farcall.model.timing import Timing
from farcall.storage.bucket import Bucket
from farcall.storage.lost_responses import LostResponses
from tests.unit.fakes import access_in_memory


def error_in(file):
    """Return a MemoryError and its traceback, raised in a file with this name."""
    try:
        exec(compile("raise MemoryError", file, "exec"))
    except MemoryError as error:
        return error, error.__traceback__.tb_next


def print_error(monkeypatch, file):
    """Record an error as Python does when it prints one."""
    error, trace = error_in(file)
    monkeypatch.setattr(sys, "last_value", error, raising=False)
    monkeypatch.setattr(sys, "last_traceback", trace, raising=False)


WATCH = LostResponses.watch


@pytest.fixture
async def waiting(clock, monkeypatch):
    """A request without a response."""
    monkeypatch.setattr(LostResponses, "watch", WATCH)  # the clock has replaced it
    monkeypatch.delattr(sys, "last_value", raising=False)
    bucket, response = Bucket("bucket", access_in_memory(Timing())), asyncio.Future()
    request = asyncio.ensure_future(bucket.send("GetObject", "key", lambda _: response))
    await asyncio.sleep(0)
    yield request, response
    request.cancel()


async def test_lost_response_ends_with_its_error(waiting, monkeypatch):
    request, _ = waiting
    print_error(monkeypatch, asyncio.base_events.__file__)
    with pytest.raises(MemoryError, match="ran out of memory while it received a response"):
        await request


async def test_error_of_notebook_ends_no_wait(waiting, monkeypatch):
    request, response = waiting
    print_error(monkeypatch, "notebook.py")
    await asyncio.sleep(60)
    response.set_result("data")
    assert await request == "data"
