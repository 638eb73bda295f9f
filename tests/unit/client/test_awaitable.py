"""What is awaited where asyncio takes coroutines, and what it says where it is not awaited."""

from __future__ import annotations

import asyncio
import gc
import pickle
import sys
import warnings

import pytest

from farcall.client import awaitable
from farcall.client.awaitable import Unawaited
from farcall.model.errors import TaskNotPicklableError

WHAT = "call of simulate"
INSTEAD = "write await simulate(...)"


async def work(value=3):
    await asyncio.sleep(0)
    return value


def call(begin=work):
    return Unawaited("simulate", WHAT, INSTEAD, begin)


@pytest.fixture
def told(monkeypatch):
    """Return what was warned of while a function ran."""
    monkeypatch.setattr(awaitable, "_seen", {})

    def tell(function):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            function()
            gc.collect()
        return [(each.category, str(each.message), each.filename, each.lineno) for each in said]

    return tell


# --- as a coroutine ---------------------------------------------------------------------------


async def gathered():
    return (await asyncio.gather(call(), call()))[1]


async def in_time():
    return await asyncio.wait_for(call(), 60)


async def as_a_task():
    return await asyncio.create_task(call())


async def in_a_group():
    async with asyncio.TaskGroup() as group:
        task = group.create_task(call())
    return task.result()


@pytest.mark.parametrize("way", [call, gathered, in_time, as_a_task, in_a_group])
def test_asyncio_takes_it(way):
    if way is in_a_group and sys.version_info < (3, 11):
        pytest.skip("Python 3.10 has no task groups")
    assert asyncio.run(way()) == 3


async def test_cancelling_its_task_cancels_the_work():
    began, ended = asyncio.Event(), asyncio.Event()

    async def wait():
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.create_task(call(wait))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_nothing_begins_before_the_await():
    begun = []
    made = call(lambda: begun.append(1) or work())
    await asyncio.sleep(0)
    assert begun == []
    assert await made == 3


async def test_it_is_for_one_await():
    made = call()
    await made
    with pytest.raises(RuntimeError, match="call of simulate was already awaited"):
        await made


# --- where it is not awaited ------------------------------------------------------------------


async def test_it_says_so():
    made = call()
    assert repr(made) == f"<{WHAT}, not awaited: {INSTEAD}>"
    await made
    assert repr(made) == f"<{WHAT}>"


@pytest.mark.parametrize(
    ("use", "kind"),
    [
        (lambda made: made.result(), AttributeError),
        (lambda made: list(made), TypeError),
        (pickle.dumps, TaskNotPicklableError),
    ],
)
def test_what_else_is_tried_says_what_to_write(told, use, kind):
    def attempt():
        with pytest.raises(kind, match=f"{WHAT} .*: write await simulate"):
            use(call())

    assert told(attempt) == []  # the error has told it


def test_the_warning_names_the_function_and_the_line(told):
    line = call.__code__.co_firstlineno + 1
    text = f"{WHAT} was never awaited, so it did not run: {INSTEAD}"
    assert told(call) == [(RuntimeWarning, text, __file__, line)]


def test_one_that_is_closed_is_meant_to_be_unused(told):
    assert told(lambda: call().close()) == []


def test_one_that_was_cancelled_before_it_began_is_not_warned_of(told):
    async def cancelled():
        task = asyncio.create_task(call())
        task.cancel()
        await asyncio.wait([task])

    assert told(lambda: asyncio.run(cancelled())) == []
