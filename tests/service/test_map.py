"""Many calls of one function."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from farcall import BatchExecutor, JobStatus, SettingsError, TaskNotPicklableError


async def test_values_come_in_the_order_of_the_arguments(executor: BatchExecutor) -> None:
    sweep = executor.task(lambda x, y: x * y).map(range(12), range(1, 13))

    assert [x * (x + 1) for x in range(12)] == await sweep
    assert len(sweep.job_ids) == 1
    detail = await executor.attach(sweep.job_ids[0]).detail()
    assert detail.array_size == 12


async def test_values_are_given_as_they_come(executor: BatchExecutor) -> None:
    found = {index: value async for index, value in executor.task(str).map([3, 1, 2])}

    assert found == {0: "3", 1: "1", 2: "2"}


async def test_nothing_to_do_takes_no_job(executor: BatchExecutor) -> None:
    assert await executor.task(str).map([]) == []


async def test_one_call_is_a_plain_job(executor: BatchExecutor) -> None:
    sweep = executor.task(str).map([3])

    assert await sweep == ["3"]
    assert ":" not in sweep.job_ids[0]
    assert (await executor.attach(sweep.job_ids[0]).detail()).array_size == 0


async def test_calls_in_one_task_have_their_own_values_and_errors(executor: BatchExecutor) -> None:
    def work(x: int) -> int:
        if x % 3 == 1:
            raise ValueError(x)
        return 10 * x

    found = await executor.task(work).map(range(8), chunksize=3, return_exceptions=True)

    assert [value for value in found if isinstance(value, int)] == [0, 20, 30, 50, 60]
    assert [error.args[0] for error in found if isinstance(error, ValueError)] == [1, 4, 7]


async def test_the_first_error_is_raised_and_ends_the_others(
    make_executor: Callable[..., BatchExecutor],
) -> None:
    def work(x: int) -> int:
        import time

        if x == 0:
            raise ValueError("the first")
        time.sleep(600)
        return x

    async with make_executor() as executor:
        sweep = executor.task(work).map(range(4))
        with pytest.raises(ValueError, match="the first"):
            await sweep

        job = executor.attach(sweep.job_ids[0])
        while not (await job.status()).is_final:
            await asyncio.sleep(0.2)
        assert JobStatus.FAILED is await job.status()


async def test_leaving_the_loop_early_ends_the_jobs(
    make_executor: Callable[..., BatchExecutor],
) -> None:
    def work(x: int) -> int:
        import time

        time.sleep(600 * x)
        return x

    async with make_executor() as executor:
        sweep = executor.task(work).map(range(3))
        values = aiter(sweep)
        assert await anext(values) == (0, 0)
        await values.aclose()

        job = executor.attach(sweep.job_ids[0])
        while not (await job.status()).is_final:
            await asyncio.sleep(0.2)


async def test_an_argument_that_cannot_travel_fails_the_map(executor: BatchExecutor) -> None:
    import threading

    with pytest.raises(TaskNotPicklableError, match="argument 1"):
        await executor.task(str).map([1, threading.Lock()])


@pytest.mark.parametrize("chunksize", [0, -1, 1.5, True])
async def test_a_wrong_chunksize_is_refused(executor: BatchExecutor, chunksize: float) -> None:
    with pytest.raises(SettingsError, match="chunksize is .* at least 1"):
        executor.task(str).map([1], chunksize=chunksize)  # type: ignore[arg-type]
