"""Frames that remain in the traceback of an error."""

import asyncio
import sys
import traceback

import pytest

from farcall import BatchExecutor, BatchPoolExecutor
from farcall.client.awaitable import Unawaited
from farcall.client.frames import frames_hidden
from farcall.model.errors import FarcallError
from farcall.payload.results import Result


def between(error):
    with frames_hidden():
        Result(error=error).unwrap()


async def inside():
    Result(error=ValueError("of the job")).unwrap()


def meant():
    with frames_hidden():
        raise FarcallError("said on purpose")


def unmeant():
    with frames_hidden():
        raise KeyError("a fault")


def functions(error):
    return [each.name for each in traceback.extract_tb(error.__traceback__)]


@pytest.mark.parametrize("fail", [lambda: between(ValueError("of the job")), meant])
def test_only_caller_frames_are_left(fail):
    with pytest.raises((ValueError, FarcallError), match="of the job|on purpose") as at:
        fail()
    assert set(functions(at.value)) <= {
        "test_only_caller_frames_are_left",
        "<lambda>",
    }


def test_raising_again_adds_no_frames():
    error = ValueError("of the job")
    for _ in range(2):
        with pytest.raises(ValueError, match="of the job") as at:
            between(error)
        assert len(functions(at.value)) == 1


@pytest.mark.parametrize("way", [lambda made: made, asyncio.ensure_future])
async def test_awaiting_hides_frames(way):
    with pytest.raises(ValueError, match="of the job") as at:
        await way(Unawaited("f", "call of f", "write await f()", inside))
    assert functions(at.value) == ["test_awaiting_hides_frames"]


def test_unexpected_error_keeps_frames():
    with pytest.raises(KeyError) as at:
        unmeant()
    assert functions(at.value)[-1] == "unmeant"


def test_development_mode_keeps_all_frames(monkeypatch):
    class Flags:
        dev_mode = True

    monkeypatch.setattr(sys, "flags", Flags)
    with pytest.raises(FarcallError) as at:
        meant()
    assert [each.name for each in traceback.extract_tb(at.value.__traceback__)][-1] == "meant"


@pytest.mark.parametrize("make", [BatchExecutor, BatchPoolExecutor])
def test_option_error_has_frame_of_constructor_only(make):
    with pytest.raises(FarcallError, match="unknown option") as at:
        make(memroy=2)
    assert set(functions(at.value)) <= {functions(at.value)[0], "__init__"}
