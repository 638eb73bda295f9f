"""Receivers of Ctrl-C while jobs are being terminated, and afterwards."""

import asyncio
import signal
import threading

import pytest

from farcall.model.interrupts import Interrupts, left_by
from tests.support.patience import PATIENCE_S


@pytest.fixture
def received():
    """Receivers of SIGINT, in order; "program" stands for the behavior without farcall."""
    received = []
    before = signal.signal(signal.SIGINT, lambda *_: received.append("program"))
    yield received
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def interrupts(received):
    return [Interrupts(lambda name=name: received.append(name)) for name in ("first", "second")]


@pytest.mark.parametrize("leaving_first", [0, 1])
def test_handler_is_restored_in_any_order(received, interrupts, leaving_first):
    own = signal.getsignal(signal.SIGINT)
    for each in interrupts:
        each.__enter__()
    signal.raise_signal(signal.SIGINT)
    assert received == ["first", "second", "program"]

    interrupts[leaving_first].__exit__()
    signal.raise_signal(signal.SIGINT)
    assert received[3:] == [("first", "second")[1 - leaving_first], "program"]

    interrupts[1 - leaving_first].__exit__()
    assert signal.getsignal(signal.SIGINT) is own


@pytest.mark.parametrize("passes_on", [True, False])
def test_handler_set_meanwhile_is_kept(received, interrupts, passes_on):
    first, second = interrupts

    def handle(number, frame):
        received.append("new")
        if passes_on:
            replaced(number, frame)

    with first:
        replaced = signal.signal(signal.SIGINT, handle)
        with second:
            signal.raise_signal(signal.SIGINT)
            assert received == (["new", "first", "second", "program"] if passes_on else ["new"])
    assert signal.getsignal(signal.SIGINT) is handle

    received.clear()
    signal.raise_signal(signal.SIGINT)
    assert received == (["new", "program"] if passes_on else ["new"])

    with first:  # now it is an ordinary handler
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is handle
    assert received.count("first") == 1


@pytest.mark.parametrize("action", [signal.SIG_IGN, signal.SIG_DFL])
def test_non_function_handlers_are_kept(received, interrupts, action):
    signal.signal(signal.SIGINT, action)
    with interrupts[0]:
        assert signal.getsignal(signal.SIGINT) is action
    assert signal.getsignal(signal.SIGINT) is action


def test_other_threads_do_not_change_handlers(received, interrupts):
    first, second = interrupts
    own = signal.getsignal(signal.SIGINT)
    entered, leave = threading.Event(), threading.Event()

    def other():
        with second:
            entered.set()
            leave.wait()

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait()
    try:
        with first:
            signal.raise_signal(signal.SIGINT)
        assert received == ["first", "program"]
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        leave.set()
        thread.join()
    assert signal.getsignal(signal.SIGINT) is own


async def test_event_loop_signal_handlers_keep_working(received, interrupts):
    loop, got = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGINT, got.set)
    try:
        for each in (*interrupts, None):
            if each is not None:
                each.__enter__()
            signal.raise_signal(signal.SIGINT)
            await asyncio.wait_for(got.wait(), PATIENCE_S)
            got.clear()
        for each in interrupts:
            each.__exit__()
        signal.raise_signal(signal.SIGINT)
        await asyncio.wait_for(got.wait(), PATIENCE_S)
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def test_reason_for_leaving_is_named():
    assert left_by(KeyboardInterrupt()) == "interrupted by Ctrl-C"
    assert left_by(asyncio.CancelledError()) == "interrupted by Ctrl-C or a cancellation"
    assert left_by(LookupError("why")) == "interrupted by LookupError"
