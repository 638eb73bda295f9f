"""Hints for errors that arise from running in a job."""

import asyncio
import sys

import pytest

from farcall import BatchExecutor
from farcall.payload.hints import hint
from tests.support.notes import notes


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
def test_nested_task_call_gets_hint(remote, outer):
    error = remote(outer, inner).error
    assert "Inside a job, a farcall task is a plain function" in notes(error)[-1].splitlines()[-1]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("AttributeError", "'Model' object has no attribute 'map'"),
        ("AttributeError", "'function' object has no attribute 'x'"),
        ("KeyError", "'map'"),
    ],
)
def test_unrelated_error_gets_no_hint(kind, message):
    assert hint(kind, message) == ""


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ("No module named 'numpy'", "numpy"),
        ("No module named 'sklearn.svm'", "sklearn"),
        ("No module named 'yaml.x'; 'yaml' is not a package", "yaml"),
    ],
)
def test_missing_module_hint_names_extra_packages(message, name):
    text = hint("ModuleNotFoundError", message)
    assert f"has no {name}: name its package in extra_packages" in text
    assert "farcall image build --packages" in text
    assert not hint("ModuleNotFoundError", "of the user's own")


@pytest.mark.parametrize("kind", ["ImportError", "OSError"])
@pytest.mark.parametrize("library", ["libGL.so.1", "libstdc++.so.6", "libgdal.so"])
def test_missing_system_library_hint_names_image(kind, library):
    message = f"{library}: cannot open shared object file: No such file or directory"
    assert f"has no {library}" in hint(kind, message)
    assert "image" in hint(kind, message)
    assert not hint(kind, "data.csv: cannot open shared object file: No such file or directory")


def test_outdated_library_hint_names_image():
    message = (
        "/lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found (required by "
        "/tmp/x/numpy/core.so)"
    )
    assert "an older GLIBC" in hint("ImportError", message)
    assert "image" in hint("ImportError", message)


def test_missing_file_of_job_gets_no_hint(tmp_path):
    error = FileNotFoundError(2, "No such file or directory", str(tmp_path / "data.csv"))
    assert hint("FileNotFoundError", str(error)) == ""


def test_hint_names_python_of_emulator(monkeypatch):
    monkeypatch.setenv("FARCALL_EMULATOR_PYTHON", "/elsewhere/bin/python")
    text = hint("ModuleNotFoundError", "No module named 'polars.io'")
    assert text.startswith("The local AWS emulator runs jobs with its own Python, /elsewhere/bin/")
    assert f"has no polars; yours is {sys.executable}" in text
