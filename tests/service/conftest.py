"""Fixtures for service tests: a proxy before the emulator, and attempts of tasks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.service.attempt import LATE, Attempt
from tests.service.operations import Meeting
from tests.support.proxy import Proxy


@pytest.fixture
def proxy(aws):
    with Proxy(aws.endpoint_url) as running:
        yield running


@pytest.fixture
def attempt(aws, proxy):
    """Create an `Attempt`; its process is killed when the test ends."""
    with contextlib.ExitStack() as stack:

        def make(function: Callable[..., Any], *args: Any, **options: Any) -> Attempt:
            made = Attempt(aws, proxy, function, *args, **options)
            return stack.enter_context(contextlib.closing(made))

        yield make


class Late:
    """Starts tasks whose time limit expires when a file exists.

    Attributes:
        trigger: Path of the file.
    """

    def __init__(self, attempt: Callable[..., Attempt], trigger: Path) -> None:
        self._attempt = attempt
        self.trigger = str(trigger)

    def __call__(
        self, function: Callable[..., Any], *args: Any, time_limit: int = 600, **options: Any
    ) -> Attempt:
        made = self._attempt(function, *args, time_limit=time_limit, **options)
        return made.start(entry=("-c", LATE, self.trigger))


@pytest.fixture
def late(attempt, tmp_path):
    return Late(attempt, tmp_path / "late")


@pytest.fixture
def meeting(aws, make_executor, tmp_path):
    return Meeting(aws, make_executor, tmp_path)
