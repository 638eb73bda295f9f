"""Modules that import farcall, in an image that lacks it."""

from __future__ import annotations

import sys

import pytest

from farcall_runtime import sources

TASKS = """
import farcall, farcall.joblib
from farcall import BatchExecutor, BatchFuture, TaskError

executor = BatchExecutor(vcpu=1)

@executor.task
def plain(x): return x + 1

@executor.task(vcpu=2)
def with_options(future: BatchFuture[int] = None): return 2

def refused(): raise TaskError("no")
"""


@pytest.fixture
def tasks(monkeypatch):
    """Variables of a module that was imported without farcall."""
    for name in [each for each in sys.modules if each.partition(".")[0] == "farcall"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [sources._ClientFinder, *sys.meta_path])
    variables = {"__name__": "tasks"}
    exec(TASKS, variables)
    yield variables
    for name in ("farcall", "farcall.joblib"):
        sys.modules.pop(name)


def test_decorated_functions_are_plain_functions(tasks):
    assert tasks["plain"](1) == 2
    assert tasks["with_options"]() == 2


def test_errors_can_be_raised_by_name(tasks):
    with pytest.raises(tasks["farcall"].TaskError, match="no"):
        tasks["refused"]()
    assert tasks["TaskError"].__module__ == "farcall"


def test_other_uses_are_rejected(tasks):
    executor = tasks["executor"]
    for use in (lambda: executor.submit(abs, 1), lambda: executor.__enter__()):
        with pytest.raises(RuntimeError, match="BatchExecutor.* cannot be used in a job"):
            use()


def test_installed_client_modules_are_kept(monkeypatch):
    import farcall

    monkeypatch.setitem(sys.modules, "farcall", farcall)
    for name in ("farcall.nothing", "farcall.client.nothing", "farcallx", "other"):
        assert sources._ClientFinder.find_spec(name) is None
