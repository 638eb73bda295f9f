"""Waits and limits of a test, as its marks name them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from farcall.testing import Timing

STREAM_S = 0.1
"""Interval at which tasks store output on the local AWS emulator, for tests that follow it."""


def marked(timing: Timing, request: pytest.FixtureRequest) -> Timing:
    """Return what ``@pytest.mark.timing(read_timeout_s=2.0)`` and the like make of a timing."""
    for mark in reversed([*request.node.iter_markers("timing")]):  # the nearest last
        timing = replace(timing, **mark.kwargs)
    return timing
