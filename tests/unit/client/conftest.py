"""The time, and a terminal, as a sweep's progress finds them."""

from __future__ import annotations

import sys

import pytest

from farcall.client import progress
from farcall.client.bars import Bar
from tests.unit.terminals import Screen


class Now:
    """The time, which passes when it is told to."""

    def __init__(self):
        self.seconds = 1000.0

    def monotonic(self):
        return self.seconds


@pytest.fixture
def now(monkeypatch):
    made = Now()
    monkeypatch.setattr(progress, "time", made)
    return made


@pytest.fixture
def screen(monkeypatch):
    """Put a terminal of 100 columns in the place of stderr, whatever the environment says."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")

    def install(made=None):  # in the test itself: pytest sets stderr before it
        made = Screen() if made is None else made
        monkeypatch.setattr(sys, "stderr", made)
        return made

    monkeypatch.setattr(Bar, "_shared", None)
    yield install
    assert Bar._shared is None
