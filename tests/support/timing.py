"""Waits and limits of a test, set with its markers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from farcall.testing import Timing

STREAM_S = 0.1
"""Interval at which tasks store output on the local AWS emulator, for tests that follow it."""


def marked(timing: Timing, request: pytest.FixtureRequest) -> Timing:
    """Apply markers like ``@pytest.mark.timing(read_timeout_s=2.0)`` to a timing."""
    for mark in reversed([*request.node.iter_markers("timing")]):  # the nearest marker wins
        timing = replace(timing, **mark.kwargs)
    return timing
