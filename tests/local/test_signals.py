"""Signals that arrive while the local AWS emulator stops.

Starts nothing; the signals are sent to this process.
"""

from __future__ import annotations

import signal

import pytest

from farcall.local.signals import held_back


class EndedError(Exception):
    pass


@pytest.fixture(autouse=True)
def _raising():
    """A handler that raises, as a program's own may."""

    def end(number, frame):
        raise EndedError(number)

    former = signal.signal(signal.SIGTERM, end)
    yield
    signal.signal(signal.SIGTERM, former)


def test_a_signal_waits_for_the_steps_to_be_done():
    steps = []
    with pytest.raises(EndedError), held_back():
        signal.raise_signal(signal.SIGTERM)
        steps.append("done")
    assert steps == ["done"]


def test_an_error_does_not_swallow_the_signal():
    with pytest.raises(EndedError), held_back():
        signal.raise_signal(signal.SIGTERM)
        raise ValueError


def test_handlers_are_back_afterwards():
    with held_back():
        pass
    with pytest.raises(EndedError):
        signal.raise_signal(signal.SIGTERM)
