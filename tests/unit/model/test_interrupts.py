"""Receivers of Ctrl-C while jobs are being terminated, and afterwards."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest

from farcall.model.interrupts import Interrupts, left_by
from tests.support.patience import PATIENCE_S


@pytest.fixture
def told():
    """Receivers of SIGINT, in order; "program" is its behavior without farcall."""
    told = []
    before = signal.signal(signal.SIGINT, lambda *_: told.append("program"))
    yield told
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def interrupts(told):
    return [Interrupts(lambda name=name: told.append(name)) for name in ("first", "second")]


@pytest.mark.parametrize("leaving_first", [0, 1])
def test_the_program_gets_ctrl_c_back_in_whichever_order_two_let_go(
    told, interrupts, leaving_first
):
    own = signal.getsignal(signal.SIGINT)
    for each in interrupts:
        each.__enter__()
    signal.raise_signal(signal.SIGINT)
    assert told == ["first", "second", "program"]

    interrupts[leaving_first].__exit__()
    signal.raise_signal(signal.SIGINT)
    assert told[3:] == [("first", "second")[1 - leaving_first], "program"]

    interrupts[1 - leaving_first].__exit__()
    assert signal.getsignal(signal.SIGINT) is own


@pytest.mark.parametrize("passes_on", [True, False])
def test_a_handler_that_the_program_sets_meanwhile_stays(told, interrupts, passes_on):
    first, second = interrupts

    def handle(number, frame):
        told.append("new")
        if passes_on:
            replaced(number, frame)

    with first:
        replaced = signal.signal(signal.SIGINT, handle)
        with second:
            signal.raise_signal(signal.SIGINT)
            assert told == (["new", "first", "second", "program"] if passes_on else ["new"])
    assert signal.getsignal(signal.SIGINT) is handle

    told.clear()
    signal.raise_signal(signal.SIGINT)
    assert told == (["new", "program"] if passes_on else ["new"])

    with first:  # later it is one like any other
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is handle
    assert told.count("first") == 1


@pytest.mark.parametrize("action", [signal.SIG_IGN, signal.SIG_DFL])
def test_what_is_no_function_stays_as_it_is(told, interrupts, action):
    signal.signal(signal.SIGINT, action)
    with interrupts[0]:
        assert signal.getsignal(signal.SIGINT) is action
    assert signal.getsignal(signal.SIGINT) is action


def test_other_threads_neither_set_nor_take_back(told, interrupts):
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
        assert told == ["first", "program"]
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        leave.set()
        thread.join()
    assert signal.getsignal(signal.SIGINT) is own


async def test_event_loops_that_handle_signals_go_on_to_do_so(told, interrupts):
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


def test_who_leaves_is_told_by_what():
    assert left_by(KeyboardInterrupt()) == "interrupted by Ctrl-C"
    assert left_by(asyncio.CancelledError()) == "interrupted by Ctrl-C or a cancellation"
    assert left_by(LookupError("why")) == "interrupted by LookupError"
