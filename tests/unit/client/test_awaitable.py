"""Calls that asyncio accepts like coroutines, and their messages when they are not awaited."""

import asyncio
import gc
import pickle
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
def warnings_of(monkeypatch):
    """Return a function that runs another one and returns its warnings."""
    monkeypatch.setattr(awaitable, "_seen", {})

    def tell(function):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            function()
            gc.collect()
        return [(each.category, str(each.message), each.filename, each.lineno) for each in caught]

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
def test_asyncio_accepts_call(way):
    assert asyncio.run(way()) == 3


async def test_cancelling_task_cancels_work():
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


async def test_call_starts_only_when_awaited():
    begun = []
    made = call(lambda: begun.append(1) or work())
    await asyncio.sleep(0)
    assert begun == []
    assert await made == 3


async def test_second_await_raises():
    made = call()
    await made
    with pytest.raises(RuntimeError, match="call of simulate was already awaited"):
        await made


# --- without await ----------------------------------------------------------------------------


async def test_repr_says_what_to_write():
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
def test_wrong_use_error_suggests_fix(warnings_of, use, kind):
    def attempt():
        with pytest.raises(kind, match=f"{WHAT} .*: write await simulate"):
            use(call())

    assert warnings_of(attempt) == []  # the error already says so


def test_warning_names_function_and_line(warnings_of):
    line = call.__code__.co_firstlineno + 1
    text = f"{WHAT} was never awaited, so it did not run: {INSTEAD}"
    assert warnings_of(call) == [(RuntimeWarning, text, __file__, line)]


def test_closed_call_does_not_warn(warnings_of):
    assert warnings_of(lambda: call().close()) == []


def test_call_cancelled_before_start_is_silent(warnings_of):
    async def cancelled():
        task = asyncio.create_task(call())
        task.cancel()
        await asyncio.wait([task])

    assert warnings_of(lambda: asyncio.run(cancelled())) == []
