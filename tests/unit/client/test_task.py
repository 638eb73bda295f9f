"""Decorated functions before submission."""

import contextlib
import inspect
import pickle

import cloudpickle
import pytest

from farcall import BatchExecutor
from farcall.client.task import Task
from farcall.model.errors import SettingsError, TaskNotPicklableError


def simulate(x, *, steps=10):
    """Simulate something."""
    return x * steps


@pytest.fixture
def task():
    return BatchExecutor(vcpu=1).task(simulate)


def test_task_has_name_doc_and_signature(task):
    assert (task.__name__, task.__doc__, task.__module__) == (
        "simulate",
        "Simulate something.",
        __name__,
    )
    assert inspect.signature(task) == inspect.signature(simulate)
    assert repr(task) == "<Task simulate>"


def test_local_calls_plain_function(task):
    assert task.local(2, steps=3) == 6


def test_pickled_task_is_plain_function(task):
    assert pickle.loads(cloudpickle.dumps(task)) is simulate


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1, 2), {}), ((1,), {"step": 3}), ((1,), {"x": 2})]
)
async def test_wrong_arguments_raise_at_call(task, args, kwargs):
    with pytest.raises(TypeError):
        task(*args, **kwargs)  # not only when it is awaited
    with pytest.raises(TypeError):
        await task.submit(*args, **kwargs)


@pytest.mark.parametrize("chunksize", [0, -1, 1.0, True, "2", None])
def test_invalid_chunksize_is_rejected(task, chunksize):
    with pytest.raises(SettingsError, match="chunksize is .*; use a whole number") as at:
        task.map([1], chunksize=chunksize)
    assert at.value.option == "chunksize"


@pytest.mark.parametrize("flag", ["return_exceptions", "progress"])
@pytest.mark.parametrize("value", [1, "yes", None])
def test_non_boolean_flag_is_rejected(task, flag, value):
    with pytest.raises(SettingsError, match=f"{flag} is .*; use True or False"):
        task.map([1], **{flag: value})


def test_map_without_iterables_is_rejected(task):
    with pytest.raises(TypeError, match="at least one iterable"):
        task.map()


def test_fixed_keywords_are_checked(task):
    with contextlib.closing(task.map([1, 2], steps=3)) as sweep:
        assert len(sweep) == 2
    for wrong in ({"step": 3}, {"x": 3}):
        with pytest.raises(TypeError):
            task.map([1], **wrong)


@pytest.mark.parametrize("calls", [[(1,), (2, 3, 4)], ((1,), ())])
def test_every_starmap_item_is_checked(task, calls):
    with pytest.raises(TypeError):
        task.starmap(calls)
    with contextlib.closing(task.starmap([(1,), [2]], steps=4)) as sweep:
        assert len(sweep) == 2


def test_starmap_item_must_be_tuple(task):
    with pytest.raises(TypeError, match="item 1 of starmap is a int; use a tuple"):
        task.starmap([(1,), 2])


def test_method_is_bound_to_instance():
    class Model:
        executor = BatchExecutor()

        def __init__(self, factor):
            self.factor = factor

        @executor.task
        def scale(self, x):
            return self.factor * x

    assert isinstance(Model.scale, Task)
    bound = Model(3).scale
    assert bound.local(2) == 6
    assert bound.executor is Model.executor
    with pytest.raises(TypeError):
        bound(1, 2)


def test_with_options_returns_another_task(task):
    other = task.with_options(vcpu=8, memory=16)
    assert other.function is simulate
    assert (other.executor.settings.vcpu, other.executor.settings.memory) == (8, 16)
    assert task.executor.settings.vcpu == 1
    with pytest.raises(SettingsError, match="did you mean vcpu"):
        task.with_options(vpcu=8)


def test_generator_function_is_rejected():
    def generate():
        yield 1

    with pytest.raises(TaskNotPicklableError):
        BatchExecutor().task(generate)
