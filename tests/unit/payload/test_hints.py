"""What is said of errors that come of running in a job."""

from __future__ import annotations

import asyncio

import pytest

from farcall import BatchExecutor
from farcall.payload.hints import hint


@BatchExecutor().task
def inner(x):
    return x


class Model:
    def fit(self):
        return 3


def maps(function):
    return function.map([1, 2])


def submits(function):
    return function.submit(1)


def runs_a_method(function):
    return Model().fit.run()


async def awaits(function):
    return await function(3)


def runs_on_a_loop(function):
    return asyncio.run(function(3))


@pytest.mark.parametrize("outer", [maps, submits, runs_a_method, awaits, runs_on_a_loop])
def test_a_task_is_the_plain_function_there(remote, outer):
    error = remote(outer, inner).error
    told = "\n".join(getattr(error, "__notes__", [str(error.__cause__)]))
    assert "Inside a job a task of farcall's is the plain function" in told.splitlines()[-1]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("AttributeError", "'Model' object has no attribute 'map'"),
        ("AttributeError", "'function' object has no attribute 'x'"),
        ("KeyError", "'map'"),
    ],
)
def test_of_others_nothing_is_said(kind, message):
    assert hint(kind, message) == ""


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ("No module named 'numpy'", "numpy"),
        ("No module named 'sklearn.svm'", "sklearn"),
        ("No module named 'yaml.x'; 'yaml' is not a package", "yaml"),
    ],
)
def test_a_module_that_the_image_lacks_is_added_there(message, name):
    assert f"has no {name}: add its package to the image" in hint("ModuleNotFoundError", message)
    assert not hint("ModuleNotFoundError", "of the user's own")
