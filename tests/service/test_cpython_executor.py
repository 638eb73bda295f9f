"""CPython's own tests of executors and futures, run against a `BatchPoolExecutor`.

Starts a local AWS emulator, because the tests submit real calls. They are slow, because many
sleep, compare clocks and have several tries.

They are not copied: the interpreter's installation contains them. `LEFT_OUT` gives the reason for
each test that only the executors of the standard library can pass. These classes are left out:

* those named after ThreadPool and ProcessPool, which inspect ``_threads``, ``_processes`` and
  queues, or share locks with their calls, except ``test_map_chunksize``;
* those of ``initializer=``: each call has its own process here;
* the deadlock tests: a dead worker breaks a process pool, and here it fails only its call.
"""

from __future__ import annotations

import functools
import gc
import logging
import os
import sys
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import farcall_local
from farcall import BatchFuture, BatchPoolExecutor
from farcall.client.loop_thread import LoopThread
from tests.support import cpython

pytestmark = pytest.mark.slow

LEFT_OUT = {
    "test_cancel_futures": "expects that 5 workers have started some of 50 calls, but not all, "
    "by the next line: jobs start later, or all at once; test_pool.py waits for one call",
    "test_multiple_set_result": "compares a text that contains the class name Future",
    "test_multiple_set_exception": "compares a text that contains the class name Future",
}

TIMED = {
    "test_first_completed",
    "test_first_exception",
    "test_first_exception_some_already_complete",
    "test_free_reference",
    "test_future_times_out",
    "test_hang_gh94440",
    "test_map_timeout",
    "test_timeout",
    "test_zero_timeout",
}
"""Tests that may fail on a busy machine, so they have several tries. They require that calls end
within a second, or expect immediately what the loop's thread does in its next iteration, such as
releasing a delivered result."""

TRIES = 4

ROOT = Path(__file__).parents[2]

_place = cpython.folder()
if _place is None:
    _reason = "no interpreter on this machine has test.test_concurrent_futures"
    if os.environ.get("CI") == "true":
        pytest.fail(f"{_reason}; in CI this is an error: install the test suite of one")
    pytest.skip(_reason, allow_module_level=True)
_modules = cpython.load(_place)
_loaded = {
    name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith(cpython.NAME)
}


def _of_cpython(name: str) -> Any:
    return next(getattr(module, name) for module in _modules if hasattr(module, name))


@pytest.fixture(scope="module")
def many_processors():
    """A local AWS emulator on which sleeping calls run at the same time."""
    with farcall_local.start(cpus=8) as aws:
        yield aws


@pytest.fixture(autouse=True)
def _on_it(many_processors, monkeypatch):
    """Configure pools, including pools in the tests' own scripts, via the environment."""
    options = {"VCPU": "1", "MEMORY": "1", "RETRY_ATTEMPTS": "1", "LINGER_S": "0.02"}
    for name, value in many_processors.environment.items():
        monkeypatch.setenv(name, value)
    for name, value in options.items():
        monkeypatch.setenv(f"FARCALL_{name}", value)


@pytest.fixture(scope="module", autouse=True)
def _modules_travel():
    """Pickle the test modules by value, because a job's interpreter may lack them.

    They must not stay loaded for other modules' tests, whose jobs would get these files.
    """
    sys.modules.update(_loaded)
    for module in _modules:
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in _modules:
        cloudpickle.unregister_pickle_by_value(module)
    for name in _loaded:
        del sys.modules[name]


@pytest.fixture(scope="module", autouse=True)
def _open_loop():
    """Keep the loop and its clients between the tests' pools."""

    async def nothing() -> None: ...

    loop = LoopThread()
    loop.run(nothing())
    yield
    loop.close()


@pytest.fixture(scope="module", autouse=True)
def _little_garbage():
    """Exclude loaded modules from garbage collection, which the tests call often."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def _again(test: Callable[[Any], None]) -> Callable[[Any], None]:
    """Give a test several tries."""

    @functools.wraps(test)
    def tried(self: Any) -> None:
        for _ in range(TRIES - 1):
            try:
                return test(self)
            except (AssertionError, RuntimeError):
                self.tearDown()
                self.setUp()
        return test(self)

    return tried


def _on_batch(run: Callable[..., Any]) -> Callable[..., Any]:
    """Run a script of the tests with a `BatchPoolExecutor`.

    The scripts expect a call's output on stdout, but a job prints elsewhere, so the output is
    printed when the call has returned. They also expect an empty stderr, so farcall's log messages
    are dropped.
    """
    before = f"""
import cloudpickle, logging, sys
sys.path.insert(0, {str(ROOT)!r})
from tests.support import cpython
for module in cpython.load(cpython.Path({str(_place)!r})):
    cloudpickle.register_pickle_by_value(module)
logging.getLogger("farcall").addHandler(logging.NullHandler())
"""
    call = 't.submit(sleep_and_print, 1.0, "apple")'
    told = f'{call}.add_done_callback(lambda done: done.result() or print("apple", flush=True))'

    @functools.wraps(run)
    def rewritten(option: str, code: str, **environment: str) -> Any:
        code = code.replace("from concurrent.futures import", "from farcall import")
        return run(option, before + code.replace(call, told), **environment)

    return rewritten


class OnBatch(_of_cpython("ExecutorMixin")):  # type: ignore[misc]
    executor_type = BatchPoolExecutor


class OnStderr(unittest.TestCase):
    """A test case with `logging` to stderr, as outside of pytest."""

    def setUp(self) -> None:
        super().setUp()
        handlers, logging.root.handlers = logging.root.handlers, []
        self.addCleanup(setattr, logging.root, "handlers", handlers)


def _case(name: str, *bases: type) -> type[unittest.TestCase]:
    """Create a test case from CPython's tests.

    CPython's own base class waits for new threads to end, but the open loop's threads stay.
    """
    case = type(name, (*bases, unittest.TestCase), {})
    for test in unittest.TestLoader().getTestCaseNames(case):
        if test in LEFT_OUT:
            setattr(case, test, unittest.skip(LEFT_OUT[test])(getattr(case, test)))
        elif test in TIMED:
            setattr(case, test, _again(getattr(case, test)))
    return case


class Chunks:
    test_map_chunksize = _of_cpython("ProcessPoolExecutorTest").test_map_chunksize


TestExecutor = _case("TestExecutor", OnBatch, _of_cpython("ExecutorTest"))
TestChunks = _case("TestChunks", OnBatch, Chunks)
TestWait = _case("TestWait", OnBatch, _of_cpython("WaitTests"))
TestAsCompleted = _case("TestAsCompleted", OnBatch, _of_cpython("AsCompletedTests"))
TestShutdown = _case("TestShutdown", OnBatch, _of_cpython("ExecutorShutdownTest"))
TestFuture = _case("TestFuture", OnStderr, _of_cpython("FutureTests"))

for _module in _modules:
    if hasattr(_module, "assert_python_ok"):
        _module.assert_python_ok = _on_batch(_module.assert_python_ok)
    if hasattr(_module, "Future"):
        _module.Future = BatchFuture


def test_all_expected_tests_exist():
    cases = (TestExecutor, TestChunks, TestWait, TestAsCompleted, TestShutdown, TestFuture)
    names = {name for case in cases for name in unittest.TestLoader().getTestCaseNames(case)}
    assert LEFT_OUT.keys() <= names
    assert len(names) >= 49
