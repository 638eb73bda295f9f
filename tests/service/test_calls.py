"""Functions that can be called, and their results.

Starts the local AWS emulator, because closures, methods and packages must be unpickled in another
process.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from pathlib import Path

import numpy as np
import pytest

from farcall import BatchExecutor, TaskNotPicklableError

sys.path.append(str(Path(__file__).parent))

from project import models


async def test_a_closure_travels_with_what_it_closes_over(executor: BatchExecutor) -> None:
    offset = 40

    @executor.task
    def add(x: int) -> int:
        return x + offset

    assert await add(2) == 42


async def test_a_lambda_a_partial_and_a_builtin_are_functions_too(executor: BatchExecutor) -> None:
    jobs = await asyncio.gather(
        executor.submit(lambda x: x + 1, 1),
        executor.submit(functools.partial(pow, 2), 10),
        executor.submit(sorted, [3, 1, 2], reverse=True),
    )

    assert [await job.result() for job in jobs] == [2, 1024, [3, 2, 1]]


async def test_a_method_travels_with_its_object(executor: BatchExecutor) -> None:
    class Counter:
        def __init__(self, start: int) -> None:
            self.start = start

        @executor.task
        def count(self, steps: int) -> list[int]:
            return [self.start + step for step in range(steps)]

    assert await Counter(5).count(3) == [5, 6, 7]


async def test_a_function_of_the_users_package_needs_nothing_in_the_job(
    executor: BatchExecutor,
) -> None:
    job = await executor.submit(models.scale, 7)

    point = await job.result()

    assert models.Point(21) == point
    assert type(point) is models.Point


async def test_a_task_that_calls_another_runs_it_on_the_spot(executor: BatchExecutor) -> None:
    @executor.task
    def inner(x: int) -> int:
        return x * 2

    @executor.task
    def outer(x: int) -> int:
        return inner(x) + 1  # type: ignore[operator]  # a plain function inside the job

    assert await outer(3) == 7


async def test_a_coroutine_function_is_awaited_in_the_job(executor: BatchExecutor) -> None:
    async def work(x: int) -> int:
        await asyncio.sleep(0)
        return x + 1

    job = await executor.submit(work, 1)

    assert await job.result() == 2


async def test_none_is_a_value(executor: BatchExecutor) -> None:
    assert await executor.task(lambda: None)() is None


async def test_keyword_arguments_named_like_options_are_the_functions(
    executor: BatchExecutor,
) -> None:
    def work(vcpu: int, *, memory: int, self: int, function: int) -> tuple[int, ...]:
        return vcpu, memory, self, function

    job = await executor.submit(work, vcpu=1, memory=2, self=3, function=4)

    assert await job.result() == (1, 2, 3, 4)


async def test_a_wrong_call_fails_before_anything_is_submitted(executor: BatchExecutor) -> None:
    @executor.task
    def work(x: int) -> int:
        return x

    with pytest.raises(TypeError, match="takes no argument 'y'"):
        await work(1, y=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        await work.submit()  # type: ignore[call-arg]


async def test_an_argument_that_cannot_travel_is_named(executor: BatchExecutor) -> None:
    with pytest.raises(TaskNotPicklableError, match=r"argument numbers \(generator\)"):
        await executor.submit(lambda numbers: sum(numbers), numbers=(x for x in range(3)))


async def test_arrays_come_back_equal_aligned_and_writable(executor: BatchExecutor) -> None:
    array = np.arange(1_000_000, dtype=np.float64).reshape(1000, 1000)

    @executor.task
    def work(array: np.ndarray, transposed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        array[0, 0] += 1  # the job's own memory
        return array, transposed.copy()

    back, other = await work(array, array.T)

    assert array[0, 0] == 0
    assert back[0, 0] == 1
    assert np.array_equal(array.T, other)
    assert back.flags.aligned
    assert back.flags.writeable


async def test_large_arrays_travel_both_ways(executor: BatchExecutor) -> None:
    array = np.arange(2**25, dtype=np.float64)  # 256 MiB, in several parts of an upload

    @executor.task(memory=4)
    def work(array: np.ndarray) -> np.ndarray:
        array += 1
        return array

    back = await work(array)

    assert array.nbytes == back.nbytes
    assert back[0] == 1
    assert array[-1] + 1 == back[-1]
