"""Calls that wait for their value, one at a time: Task.run."""

from __future__ import annotations

import pytest

from farcall import BatchExecutor

pytestmark = pytest.mark.usefixtures("module_travels")


def scale(x, factor=2):
    return x * factor


@pytest.fixture
def task(cloud):
    return BatchExecutor(linger_s=0).task(scale)


def test_a_call_gives_its_value(task, cloud):
    assert [task.run(3), task.run(3, factor=5)] == [6, 15]
    assert [job.name.partition("-")[0] for job in cloud.jobs] == ["scale", "scale"]


def test_what_the_function_raises_is_raised(cloud):
    def fail():
        raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        BatchExecutor(linger_s=0).task(fail).run()


def test_a_wrong_call_fails_at_once(task, cloud):
    with pytest.raises(TypeError):
        task.run(3, 4, 5)
    assert cloud.jobs == []


async def test_where_an_event_loop_runs_it_names_what_to_write(task, cloud):
    with pytest.raises(RuntimeError, match=r"Write `await scale\(\.\.\.\)`"):
        task.run(3)
    assert cloud.jobs == []
