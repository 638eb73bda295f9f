"""Pools: submit, wait, cancel and shut down."""

import asyncio
import concurrent.futures
import importlib
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from farcall import (
    BatchFuture,
    BatchPoolExecutor,
    FarcallError,
    NothingToRetryError,
    SettingsError,
    TaskNotPicklableError,
)
from farcall.client import loop_thread
from tests.support.patience import PATIENCE_S, until
from tests.support.tasks import wait_for

pytestmark = pytest.mark.usefixtures("module_travels")


def scale(x, factor=2):
    return x * factor


@pytest.fixture
def pool(make_pool):
    with make_pool() as opened:
        yield opened


def fail_until(file):
    if not Path(file).exists():
        raise KeyError("not yet")
    return "fixed"


def test_failed_call_is_retried_with_options(pool, cloud, gate):
    future = pool.submit(fail_until, str(gate))
    with pytest.raises(KeyError, match="not yet"):
        future.result(PATIENCE_S)
    gate.touch()
    again = future.retry(memory=8)
    assert again.result(PATIENCE_S) == "fixed"
    assert again.job_id not in (None, future.job_id)
    assert [job.memory_mib for job in cloud.jobs] == [3840, 8192]
    with pytest.raises(NothingToRetryError, match="has succeeded"):
        again.retry()


@pytest.mark.parametrize("value", [3, None])
def test_future_has_usage_after_delivery(pool, value):
    future = pool.submit(scale, value)
    concurrent.futures.wait([future], PATIENCE_S)
    assert future.usage().peak_memory_bytes > 2**20


def test_retry_before_submission_is_rejected(make_pool):
    with make_pool(linger_s=30) as pool:
        future = pool.submit(scale, 3)
        with pytest.raises(FarcallError, match="Batch has not accepted it"):
            future.retry()
        future.cancel()


def test_expired_wait_names_call(make_pool):
    with make_pool(linger_s=30) as pool:
        future = pool.submit(scale, 3)
        with pytest.raises(concurrent.futures.TimeoutError, match="the call has not finished"):
            future.result(0)
        future.cancel()


def test_future_has_result_and_job_id(pool, cloud):
    future = pool.submit(scale, 3, factor=5)
    assert isinstance(future, BatchFuture)
    assert isinstance(future, concurrent.futures.Future)
    assert future.result(PATIENCE_S) == 15
    assert future.job_id == cloud.jobs[0].job_id


def test_function_is_positional_only(pool):
    """Keywords such as `fn` are passed to the function."""

    def take(**named):
        return named

    given = {"self": 1, "fn": 2, "function": 3}
    assert pool.submit(take, **given).result(PATIENCE_S) == given
    with pytest.raises(TypeError):
        pool.submit(function=scale)


def test_future_holds_error_of_call(pool):
    def fail():
        raise KeyError("x")

    future = pool.submit(fail)
    assert isinstance(future.exception(PATIENCE_S), KeyError)
    with pytest.raises(KeyError, match="x"):
        future.result()


def test_wrong_arguments_raise_before_submission(pool, cloud):
    with pytest.raises(TypeError):
        pool.submit(scale)
    assert cloud.jobs == []


def test_cancelling_running_call_ends_job(pool, cloud, gate):
    future = pool.submit(wait_for, gate, "waited")
    until(future.running)
    assert future.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        future.result()
    until(lambda: cloud.jobs[0].status == "FAILED")


def test_cancelling_pending_call_submits_nothing(make_pool, cloud):
    with make_pool(linger_s=60) as pool:
        future = pool.submit(scale, 1)
        assert future.cancel()
    assert cloud.jobs == []


def test_exit_waits_and_rejects_new_calls(make_pool, gate):
    with make_pool() as pool:
        future = pool.submit(wait_for, gate, "waited")
        threading.Timer(0.1, gate.touch).start()
    assert future.result(0) == "waited"
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        pool.submit(scale, 1)
    pool.shutdown()


def test_ctrl_c_cancels_calls_and_logs(make_pool, cloud, gate, caplog):
    with pytest.raises(KeyboardInterrupt), make_pool() as pool:
        future = pool.submit(wait_for, gate, "waited")
        until(future.running)
        raise KeyboardInterrupt
    assert future.cancelled()
    assert "cancelled 1 unfinished call" in caplog.text
    until(lambda: cloud.jobs[0].status == "FAILED")


def test_shutdown_without_wait_lets_calls_finish(make_pool, gate):
    pool = make_pool()
    future = pool.submit(wait_for, gate, "waited")
    until(future.running)
    pool.shutdown(wait=False, cancel_futures=True)
    pool.shutdown(wait=False)
    gate.touch()
    assert future.result(PATIENCE_S) == "waited"
    pool.shutdown()


def test_shutdown_cancels_pending_calls(make_pool, gate):
    pool = make_pool(1)
    begun, waiting = pool.submit(wait_for, gate, "waited"), pool.submit(scale, 1)
    until(begun.running)
    pool.shutdown(wait=False, cancel_futures=True)
    assert waiting.cancelled()
    gate.touch()
    pool.shutdown()
    assert begun.result(0) == "waited"


def test_max_workers_limits_running_calls(make_pool, cloud, gate):
    with make_pool(max_workers=2) as pool:
        futures = [pool.submit(wait_for, gate, "waited") for _ in range(5)]
        until(lambda: sum(future.running() for future in futures) == 2)
        assert futures[4].cancel()
        assert [future.running() for future in futures] == [True, True, False, False, False]
        gate.touch()
        assert [future.result(PATIENCE_S) for future in futures[:4]] == ["waited"] * 4


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "4", True])
def test_invalid_max_workers_is_rejected(wrong):
    with pytest.raises(SettingsError, match="max_workers must be greater than 0"):
        BatchPoolExecutor(wrong)


async def test_pool_works_with_run_in_executor(pool):
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(pool, scale, 3) == 6


def test_blocking_in_callback_is_rejected(make_pool, gate):
    """Waiting on farcall's own event loop would be a deadlock."""
    pool = make_pool()
    held = pool.submit(wait_for, gate, "waited")
    refused = []

    def use(_):
        values = pool.map(scale, [1])
        for wait in (held.result, held.exception, values.__next__, pool.shutdown):
            try:
                wait()
            except RuntimeError as error:
                refused.append("own event loop" in str(error))

    opened = gate.with_name("opened")
    pool.submit(wait_for, opened).add_done_callback(use)
    opened.touch()
    until(lambda: len(refused) == 4)
    assert all(refused)
    gate.touch()
    pool.shutdown()


def test_callback_reads_finished_result(pool, gate):
    given = []
    future = pool.submit(wait_for, gate, "waited")
    future.add_done_callback(lambda future: given.append(future.result()))
    gate.touch()
    assert until(lambda: given) == ["waited"]


def test_callback_error_is_logged(pool, gate, caplog):
    future = pool.submit(wait_for, gate, "waited")
    future.add_done_callback(lambda _: sys.exit(1))
    gate.touch()
    assert future.result(PATIENCE_S) == "waited"
    assert pool.submit(scale, 4).result(PATIENCE_S) == 8
    assert "callback of <BatchFuture" in caplog.text


def test_unreferenced_pool_ends_after_its_calls(make_pool, gate):
    pool = make_pool()
    calls, future = pool._calls, pool.submit(wait_for, gate, "waited")
    del pool
    until(lambda: calls.is_shut)
    gate.touch()
    assert future.result(PATIENCE_S) == "waited"
    until(lambda: not calls._loop.is_held)


def test_pickling_pool_is_rejected(pool):
    with pytest.raises(TaskNotPicklableError, match="a BatchPoolExecutor cannot be pickled"):
        pool.submit(scale, pool).result(PATIENCE_S)


def test_failed_submission_does_not_block_shutdown(make_pool, cloud, monkeypatch):
    def fail():
        raise OSError("too many open files")

    pool = make_pool()
    with monkeypatch.context() as patch:
        patch.setattr(loop_thread, "_shared_loop", fail)
        with pytest.raises(OSError, match="too many open files"):
            pool.submit(scale, 1)
    assert repr(pool) == "<BatchPoolExecutor: 0 unfinished calls>"
    pool.shutdown()


def test_call_of_unfinished_import_is_refused(pool, tmp_path, monkeypatch):
    """Sending the function would wait for the import, which would wait for the call."""
    path = tmp_path / "unguarded_pool.py"
    path.write_text("import pools\n\n\ndef add(x):\n    return x\n\n\npools.pool.submit(add, 1)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "pools", SimpleNamespace(pool=pool))
    with pytest.raises(FarcallError, match=r"line 8 of .*unguarded_pool.py runs jobs while it is"):
        importlib.import_module("unguarded_pool")
