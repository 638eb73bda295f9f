import functools
import hashlib
import sys
import threading
import types

import cloudpickle
import numpy as np
import pytest

from farcall.model.errors import TaskNotPicklableError
from farcall.payload.pickling import check_callable, pack_calls, pack_function
from tests.unit.fakes import joined, unpickled


def pack(*args, **kwargs):
    (packed,) = pack_calls([[(args, kwargs)]])
    return packed


# --- functions --------------------------------------------------------------------------------


class Counter:
    def __init__(self, step):
        self.step = step

    def count(self, x):
        return x + self.step

    @staticmethod
    def double(x):
        return 2 * x

    def __call__(self, x):
        return self.count(x)


def closure(step):
    def add(x):
        return x + step

    return add


def plus(x, step):
    return x + step


@pytest.mark.parametrize(
    "function",
    [
        closure(5),
        lambda x: x + 5,
        Counter(5).count,
        Counter(5),
        functools.partial(plus, step=5),
        functools.wraps(plus)(lambda x: x + 5),
    ],
    ids=["closure", "lambda", "method", "object", "partial", "wrapped"],
)
def test_functions_of_every_kind_are_pickled(function):
    assert unpickled(pack_function(function))(10) == 15


def test_functions_run_without_their_module(remote):
    functions = [closure(5), Counter(5).count, Counter(5), functools.partial(plus, step=5)]

    def call_all(x):
        return [function(x) for function in functions]

    assert remote(call_all, 10).unwrap() == [15] * 4


def test_equal_functions_have_equal_bytes():
    one, other = pack_function(plus), pack_function(plus)
    assert (one.sha256, joined(one)) == (other.sha256, joined(other))


def test_size_and_digest_match_bytes():
    packed = pack({"a": np.arange(10_000)}, b=bytes(5000))
    data = joined(packed)
    assert (packed.size, packed.sha256) == (len(data), hashlib.sha256(data).digest())


def generate():
    yield 1


async def agenerate():
    yield 1


async def coroutine():
    return 1


@pytest.mark.parametrize("function", [generate, agenerate])
def test_generator_function_is_rejected_with_remedy(function):
    with pytest.raises(TaskNotPicklableError, match=f"{function.__name__} is a generator .* list"):
        check_callable(function)


def test_non_function_is_rejected():
    with pytest.raises(TaskNotPicklableError, match="3 is of type int, not a function. Pass"):
        check_callable(3)


@pytest.mark.parametrize("function", [plus, coroutine, len, Counter(1), Counter, closure(1)])
def test_any_callable_is_accepted(function):
    check_callable(function)


# --- not picklable ----------------------------------------------------------------------------


def test_function_with_lock_is_named():
    lock = threading.Lock()

    def locked(x):
        with lock:
            return x

    with pytest.raises(TaskNotPicklableError, match=r"function \S*locked cannot be pickled") as e:
        pack_function(locked)
    assert isinstance(e.value.__cause__, TypeError)


# --- large values -----------------------------------------------------------------------------


def shares_memory(packed, array):
    start = array.__array_interface__["data"][0]
    views = [p for p in packed.pieces if isinstance(p, memoryview)]
    found = [np.frombuffer(view, np.uint8).__array_interface__["data"][0] for view in views]
    return start in found


@pytest.mark.parametrize("order", ["C", "F"])
def test_array_is_pickled_without_copy(order):
    array = np.asarray(np.arange(100_000.0).reshape(100, -1), order=order)
    packed = pack(array)
    assert shares_memory(packed, array)
    ((copy,), _) = unpickled(packed)[0]
    np.testing.assert_array_equal(copy, array)
    assert copy.flags["ALIGNED"]


@pytest.mark.parametrize(
    "array", [np.arange(100_000)[::3], np.zeros(0), np.array([{}, None]), np.array(5)]
)
def test_unusual_arrays_are_pickled(array):
    ((copy,), _) = unpickled(pack(array))[0]
    np.testing.assert_array_equal(copy, array)


def test_large_bytes_are_not_copied():
    data = bytes(1_000_000)
    assert any(piece is data for piece in pack(data).pieces)


# --- project modules --------------------------------------------------------------------------


def test_project_function_runs_without_project(remote, models):
    result = remote(models.move, models.Point(1), 2).unwrap()
    assert result == models.Point(7)


def test_installed_packages_are_not_pickled(models):
    packed = pack_function(functools.partial(np.linalg.norm, ord=2))
    assert packed.size < 1000
    assert b"labkit" not in joined(packed)


def test_cloudpickle_registry_is_restored(models):
    cloudpickle.register_pickle_by_value(models)
    try:
        before = cloudpickle.list_registry_pickle_by_value()
        pack_function(models.move)
        pack(models.Point(1))
        with pytest.raises(TaskNotPicklableError):
            pack(threading.Lock())
        assert cloudpickle.list_registry_pickle_by_value() == before == {"labkit.models"}
    finally:
        cloudpickle.unregister_pickle_by_value(models)


def test_replaced_module_does_not_matter(models, monkeypatch):
    """Notebooks and test runners replace modules, so that the number stays the same."""
    pack_function(plus)
    monkeypatch.delitem(sys.modules, "labkit.models")
    monkeypatch.setitem(sys.modules, "labkit.other", types.ModuleType("labkit.other"))
    assert unpickled(pack_function(plus))(1, 2) == 3
    assert unpickled(pack(1)) == [((1,), {})]
    assert cloudpickle.list_registry_pickle_by_value() == set()


def test_project_near_interpreter_is_pickled(remote, monkeypatch):
    """Examples are /usr/src/app with a Python in /usr, and a project around its environment."""
    name = "labkit_beside"
    module = types.ModuleType(name)
    module.__file__ = f"{sys.prefix}/src/app/{name}.py"
    exec("def answer():\n    return 42", vars(module))  # a module without a file
    monkeypatch.setitem(sys.modules, name, module)
    assert remote(module.answer).unwrap() == 42
