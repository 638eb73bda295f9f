"""BatchPoolExecutor.map: order, laziness, and cancellation of the rest."""

import asyncio
import concurrent.futures
import gc
import threading
import weakref
from pathlib import Path

import pytest

from farcall import SettingsError
from tests.support.patience import PATIENCE_S, until
from tests.support.tasks import wait_for

pytestmark = pytest.mark.usefixtures("module_travels")


class Thing:
    pass


class FalsyError(Exception):
    def __len__(self):
        return 0


def add(x, y=0):
    return x + y


def fail_at_three(x):
    if x == 3:
        raise FalsyError("three")
    return x


def time_out():
    raise concurrent.futures.TimeoutError("the call's own")


def is_gone(seen):
    gc.collect()
    return seen() is None


@pytest.fixture(params=[None, 3], ids=["all at once", "three at a time"])
def pool(request, make_pool):
    with make_pool(max_workers=request.param) as opened:
        yield opened


@pytest.mark.parametrize(("chunksize", "buffersize"), [(1, None), (4, None), (4, 2)])
def test_results_keep_argument_order(pool, chunksize, buffersize):
    values = pool.map(add, range(10), [5] * 9, chunksize=chunksize, buffersize=buffersize)
    assert list(values) == list(range(5, 14))


@pytest.mark.parametrize("iterables", [(), ([],), ([], [])])
def test_empty_map_submits_nothing(pool, cloud, iterables):
    assert list(pool.map(lambda x, y: x + y, *iterables)) == []
    assert cloud.jobs == []


@pytest.mark.parametrize("chunksize", [1, 4])
def test_iteration_continues_after_error(pool, chunksize):
    values = pool.map(fail_at_three, range(5), chunksize=chunksize)
    assert [next(values), next(values), next(values)] == [0, 1, 2]
    with pytest.raises(FalsyError, match="three"):
        next(values)
    assert list(values) == [4]


def test_progress_is_shown_for_all_calls(make_pool, capsys):
    with make_pool() as pool:
        assert list(pool.map(add, range(3), progress=True)) == [0, 1, 2]
        with pytest.raises(SettingsError, match="leave them out"):
            pool.map(add, range(3), buffersize=1, progress=True)
    assert "3 of 3 done, 0 failed" in capsys.readouterr().err


@pytest.mark.parametrize("how", [{}, {"chunksize": 3}, {"buffersize": 2}])
def test_stop_iteration_becomes_runtime_error(pool, how):
    values = pool.map(lambda row: next(iter(row)), [[1], [], [3]], **how)
    assert next(values) == 1
    with pytest.raises(RuntimeError, match="raised StopIteration") as at:
        next(values)
    assert isinstance(at.value.__cause__, StopIteration)
    assert list(values) == [3]


def test_map_runs_without_iteration(pool, gate):
    read = iter([gate, gate.with_name("other")])
    pool.map(Path.touch, read)
    assert list(read) == []
    until(gate.with_name("other").exists)


def test_timeout_cancels_remaining_calls(pool, cloud, gate):
    values = pool.map(wait_for, [gate] * 3, timeout=0.5)
    with pytest.raises(concurrent.futures.TimeoutError):
        next(values)
    assert list(values) == []
    pool.shutdown()
    assert not gate.exists()


def test_error_reports_progress_and_recovery(make_pool, cloud):
    """Results that were already yielded stay too, because the caller may have lost them."""
    with make_pool() as pool:
        values = pool.map(fail_at_three, range(6))
        until(lambda: values._source.unfinished == 0)
        with pytest.raises(FalsyError) as caught:
            list(values)
    failure = caught.value.map_failure
    assert failure.message == "1 of 6 raised FalsyError"
    assert (failure.kept, failure.unfinished) == (5, 0)
    assert failure.job_ids == (cloud.jobs[0].job_id,)

    async def recovered():
        jobs = (await pool.executor.recover(failure.run)).jobs
        return [await job.result() for job in jobs if await job.exception() is None]

    assert sorted(asyncio.run(recovered())) == [0, 1, 2, 4, 5]


def test_unfinished_calls_are_cancelled_on_close(make_pool, cloud, gate):
    functions = [time_out, lambda: wait_for(gate), lambda: wait_for(gate)]
    with make_pool() as pool:
        values = pool.map(lambda f: f(), functions)
        with pytest.raises(concurrent.futures.TimeoutError) as caught:
            next(values)
        assert (
            caught.value.map_failure.message == "1 of 3 raised TimeoutError; 2 have not finished"
        )
        values.close()
    summary = "1 of 3 raised TimeoutError; 2 were cancelled because of it"
    until(lambda: summary in cloud.jobs[0].status_reason)


@pytest.mark.parametrize("leave", ["close", "drop", "error"])
def test_abandoned_iterator_cancels_remaining_calls(pool, cloud, gate, leave):
    functions = [lambda: 1, time_out, lambda: wait_for(gate), lambda: wait_for(gate)]
    values = pool.map(lambda f: f(), functions)
    assert next(values) == 1
    if leave == "close":
        values.close()
        assert list(values) == []
    elif leave == "drop":
        del values
        gc.collect()
    else:
        with pytest.raises(concurrent.futures.TimeoutError):
            for _ in values:
                pass
        values = None
    pool.shutdown()
    assert not gate.exists()


def test_buffersize_limits_reading(make_pool):
    read = []

    def items():
        for number in range(100):
            read.append(number)
            yield number

    with make_pool() as pool:
        values = pool.map(add, items(), buffersize=4)
        assert len(read) == 4
        assert [next(values) for _ in range(3)] == [0, 1, 2]
        assert len(read) == 7
        values.close()


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        ({"buffersize": 0}, ValueError, "buffersize must be None or > 0"),
        ({"buffersize": "2"}, TypeError, "buffersize must be an integer or None"),
        ({"chunksize": 0}, SettingsError, "chunksize is 0; use a whole number of at least 1"),
    ],
)
def test_invalid_numbers_are_rejected(pool, wrong, error, text):
    with pytest.raises(error, match=text):
        pool.map(add, [1], **wrong)


def test_unfitting_arguments_are_rejected(pool):
    with pytest.raises(TypeError):
        pool.map(add, [1], [2], [3])


def test_yielded_results_are_released(pool):
    for value in pool.map(lambda _: Thing(), range(2)):
        seen = weakref.ref(value)
        del value
        until(lambda seen=seen: is_gone(seen))


def test_cancelling_unsubmitted_map_ends_it(make_pool, cloud):
    pool = make_pool(linger_s=30, max_workers=1)
    values = pool.map(add, range(3))
    pool.shutdown(cancel_futures=True)
    with pytest.raises(concurrent.futures.CancelledError):
        next(values)
    assert cloud.jobs == []


def test_cancelled_map_wakes_its_waiter(make_pool, cloud):
    """A map that is cancelled before it starts raises in the thread that waits."""
    pool, held = make_pool(), threading.Event()
    pool._calls._loop.call_soon(held.wait)  # keeps the loop busy, so that it starts nothing
    values, errors = pool.map(add, range(3)), []

    def take():
        try:
            next(values)
        except concurrent.futures.CancelledError as error:
            errors.append(error)

    taker = threading.Thread(target=take, daemon=True)
    taker.start()
    until(lambda: values._source._arrived._waiters)
    pool.shutdown(wait=False, cancel_futures=True)
    held.set()
    pool.shutdown()
    until(lambda: errors, PATIENCE_S / 5)
    assert cloud.jobs == []
