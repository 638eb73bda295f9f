"""Common fixtures: an environment without the developer's AWS account, and local emulators."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import boto3
import cloudpickle
import pytest

import farcall_local
from farcall import BatchExecutor
from farcall.testing import Timing, use_timing
from tests import emulators
from tests.support.commands import Commands
from tests.support.jobs import terminate_all
from tests.support.timing import STREAM_S, marked
from tests.support.wheels import Index


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--aws", action="store_true", help="test Batch in a real AWS account")
    parser.addoption(
        "--kubeconfig", help="test the cluster of this file's context instead of the emulator"
    )


def pytest_configure() -> None:
    """Make Ctrl-C reach child processes, even if the tests run in the background.

    A shell without job control makes background jobs ignore SIGINT, and child processes inherit
    that, so a Ctrl-C test would wait forever. A Python handler is not inherited, so child
    processes start with the signal's default action.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_SMALL = ("unit", "contract")
"""Folders whose tests start no servers; see ``tests/README.md``."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that ``make test`` leaves to ``.ci/run``."""
    for item in items:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        if folder not in _SMALL and item.get_closest_marker("core") is None:
            item.add_marker("system")


@pytest.fixture
def gate(tmp_path):
    """File that calls wait for; it is created at teardown in any case."""
    file = tmp_path / "gate"
    yield file
    file.touch()


@pytest.fixture(autouse=True)
def _forget_modules(tmp_path_factory):
    """Unload what a test imported from its temporary folder.

    Modules from such a folder count as the project's code. All later jobs would get them, and
    would import test modules instead of unpickling functions by value.
    """
    before = set(sys.modules)
    yield
    folder = str(tmp_path_factory.getbasetemp())
    for name in sys.modules.keys() - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(folder):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def _clean_environment(pytestconfig, monkeypatch, tmp_path):
    """Hide the developer's credentials, options and files from tests, unless --aws is given."""
    if pytestconfig.getoption("--aws"):
        return
    for name in os.environ:
        if name.startswith(("AWS_", "FARCALL_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # the session caches credentials
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def timing(request):
    """Waits and limits of a test: short ones, unless the test sets them with a marker."""
    return marked(Timing.fast(), request)


@pytest.fixture(autouse=True)
def _timing_in_force(timing):
    with use_timing(timing):
        yield


@pytest.fixture
def module_travels(request):
    """Pickle a test's module by value, because a job cannot import tests."""
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)


@pytest.fixture(scope="session")
def commands():
    with contextlib.closing(Commands()) as running:
        yield running


@pytest.fixture(scope="session")
def embedded():
    with farcall_local.start() as aws:
        aws.configure(stream_s=STREAM_S)
        yield aws


@pytest.fixture(scope="module")
def own_embedded():
    """A separate emulator for a module that creates queues, which other tests would see."""
    with farcall_local.start() as aws:
        aws.configure(stream_s=STREAM_S)
        yield aws


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A package index, which is the only one that uv uses."""
    with contextlib.closing(Index(tmp_path / "index")) as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture
def aws(embedded, monkeypatch):
    """Use the local AWS emulator via the environment; terminate a test's unfinished jobs.

    Otherwise two sleeping jobs would occupy both processors of a small machine, and later tests
    would wait until the jobs' time limit.
    """
    for name, value in embedded.environment.items():
        monkeypatch.setenv(name, value)
    began = time.time()
    yield embedded
    terminate_all(embedded, began)


@pytest.fixture(scope="session")
def embedded_kubernetes():
    with emulators.start(kubernetes=True) as aws:
        aws.configure(stream_s=STREAM_S)
        yield aws


@pytest.fixture
def kubernetes(embedded_kubernetes, monkeypatch):
    """Use a local AWS emulator with a Kubernetes emulator via the environment."""
    for name, value in embedded_kubernetes.environment.items():
        monkeypatch.setenv(name, value)
    return embedded_kubernetes


@pytest.fixture
def options(aws):
    """Options of small jobs without retries and with a short linger time."""
    return {"vcpu": 1, "memory": 1, "retry_attempts": 1, "linger_s": 0.02}


@pytest.fixture
async def executor(options):
    async with BatchExecutor(**options) as opened:
        yield opened


@pytest.fixture
def make_executor(options):
    return lambda **more: BatchExecutor(**{**options, **more})
