"""Task.run: calls that block until their result is available."""

import pytest

from farcall import BatchExecutor

pytestmark = pytest.mark.usefixtures("module_travels")


def scale(x, factor=2):
    return x * factor


@pytest.fixture
def task(cloud):
    return BatchExecutor(linger_s=0).task(scale)


def test_call_returns_result(task, cloud):
    assert [task.run(3), task.run(3, factor=5)] == [6, 15]
    assert [job.name.partition("-")[0] for job in cloud.jobs] == ["scale", "scale"]


def test_function_error_is_raised(cloud):
    def fail():
        raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        BatchExecutor(linger_s=0).task(fail).run()


def test_wrong_arguments_raise_before_submission(task, cloud):
    with pytest.raises(TypeError):
        task.run(3, 4, 5)
    assert cloud.jobs == []


async def test_run_inside_event_loop_is_rejected(task, cloud):
    with pytest.raises(RuntimeError, match=r"Write `await scale\(\.\.\.\)`"):
        task.run(3)
    assert cloud.jobs == []
