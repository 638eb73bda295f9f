import asyncio
import importlib
import os
import sys
import traceback
from pathlib import Path
from threading import Lock
from typing import Annotated

import pydantic
import pytest

from farcall.model import errors
from farcall.payload import results
from farcall_runtime import failures
from farcall_runtime.contract import OutcomeStatus
from tests.support import broken
from tests.support.notes import notes
from tests.unit.fakes import JOB, done


@pytest.fixture
def only_there(tmp_path):
    """Function that imports a module that the client does not have."""
    text = "class ThereError(Exception):\n    pass\nclass Thing:\n    pass\n"
    (tmp_path / "only_there.py").write_text(text)
    folder = str(tmp_path)

    def load():
        sys.path.insert(0, folder)
        return importlib.import_module("only_there")

    return load


# --- results ----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, 0, "", [], {"a": (1, 2)}, b"x" * 5000, ValueError("v")])
def test_result_is_returned(remote, value):
    result = remote(lambda: value)
    assert repr(result.unwrap()) == repr(value)
    assert result.error is None


def test_each_call_of_chunk_has_result(container):
    def half(x):
        return 12 // x

    records, value = container.run(half, [((n,), {}) for n in (1, 0, 3)])
    found = results.read(done(*records), value, JOB)
    assert [found[0].unwrap(), found[2].unwrap()] == [12, 4]
    with pytest.raises(ZeroDivisionError):
        found[1].unwrap()
    assert [results.is_success(done(record)) for record in records] == [True, False, True]


def test_outcome_without_results_is_no_success():
    assert not results.is_success({"status": OutcomeStatus.KILLED, "results": []})


def test_coroutine_function_is_awaited_remotely(remote):
    async def work(x):
        await asyncio.sleep(0)
        return x

    assert remote(work, 4).unwrap() == 4


# --- exceptions -------------------------------------------------------------------------------


def test_exception_has_remote_traceback(remote):
    def deep(x):
        raise KeyError("missing", x)

    def work(x):
        deep(x)

    error = remote(work, 3).error
    assert (type(error), error.args) == (KeyError, ("missing", 3))
    (text,) = notes(error)
    assert "Raised in AWS Batch job job-1 (simulate), attempt 1:" in text
    assert "in deep" in text
    assert "KeyError: ('missing', 3)" in text
    assert "farcall_runtime" not in text


def test_remote_traceback_is_shown(remote):
    def work():
        raise ValueError("wrong")

    try:
        remote(work).unwrap()
    except ValueError:
        shown = traceback.format_exc()
    assert "in work" in shown
    assert "Raised in AWS Batch job job-1" in shown


def test_custom_constructor_keeps_attributes(remote, models):
    error = remote(models.fail, 7).error
    assert type(error) is models.LabError
    assert (error.code, error.hint, str(error)) == (7, "look", "lab error 7")


def test_os_error_keeps_errno(remote):
    def work():
        Path("/no/such/file").read_text()

    error = remote(work).error
    assert (type(error), error.errno, error.filename) == (FileNotFoundError, 2, "/no/such/file")


@pytest.mark.parametrize("hides_input", [False, True])
def test_pydantic_error_arrives_as_itself(remote, hides_input):
    def work():
        import pydantic
        import pydantic_core

        def check(value):
            if value == 2:
                raise ValueError("no two")
            raise pydantic_core.PydanticCustomError("odd", "{n} is odd", {"n": value})

        checked = Annotated[int, pydantic.AfterValidator(check)]
        config = pydantic.ConfigDict(hide_input_in_errors=hides_input)
        model = pydantic.create_model(
            "Row", __config__=config, size=int, first=checked, second=checked, other=str
        )
        model(size="x", first=2, second=3, other=Lock())

    with pytest.raises(pydantic.ValidationError) as here:
        work()
    error = remote(work).error
    assert type(error) is pydantic.ValidationError
    assert [line["msg"] for line in error.errors()] == [
        line["msg"] for line in here.value.errors()
    ]
    assert ("input_value" in str(error)) is not hides_input


def test_custom_os_error_keeps_errno(remote):
    class FullError(OSError):
        def __init__(self, where):
            super().__init__(28, "disk is full")
            self.where = where

    def work():
        raise FullError("/data")

    error = remote(work).error
    assert (type(error), error.where) == (FullError, "/data")
    assert (error.errno, str(error)) == (28, "[Errno 28] disk is full")


def test_exception_group_is_returned(remote):
    def work():
        raise ExceptionGroup("both", [ValueError("one"), KeyError("two")])

    error = remote(work).error
    assert type(error).__name__ == "ExceptionGroup"
    assert [repr(member) for member in error.exceptions] == [
        "ValueError('one')",
        "KeyError('two')",
    ]


def test_exception_with_unpicklable_arguments_keeps_class(remote):
    def work():
        import threading

        raise RuntimeError("locked", threading.Lock())

    error = remote(work).error
    assert (type(error), error.args[0]) == (RuntimeError, "locked")
    assert "lock" in error.args[1]


def test_exception_of_remote_class_becomes_text(remote, only_there):
    def work():
        raise only_there().ThereError("gone")

    error = remote(work).error
    assert type(error) is errors.TaskError
    assert "the function raised only_there.ThereError: gone" in str(error)
    assert "in work" in str(error)
    assert (error.job_id, error.attempts) == ("job-1", 1)


def test_cause_is_kept(remote):
    def work():
        try:
            {}["a"]
        except KeyError as error:
            raise ValueError("no a") from error

    error = remote(work).error
    assert (repr(error), repr(error.__cause__)) == ("ValueError('no a')", "KeyError('a')")
    assert error.__suppress_context__ is True


def test_context_is_kept(remote):
    def work():
        try:
            {}["a"]
        except KeyError:
            [][1]

    error = remote(work).error
    assert (type(error), repr(error.__context__)) == (IndexError, "KeyError('a')")
    assert error.__cause__ is None


def test_cause_of_remote_class_becomes_text(remote, only_there):
    def work():
        raise ValueError("here") from only_there().ThereError("gone")

    error = remote(work).error
    assert (type(error), str(error.__cause__)) == (ValueError, "only_there.ThereError: gone")


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_process_exits_become_task_errors(remote, kind):
    def work():
        raise kind(3)

    error = remote(work).error
    assert type(error) is errors.TaskError
    assert f"the function raised {kind.__name__}: 3" in str(error)


def test_exception_without_str_is_returned(remote):
    class MuteError(Exception):
        def __str__(self):
            raise RuntimeError("no words")

    def work():
        raise MuteError(1)

    error = remote(work).error
    assert (type(error), error.args) == (MuteError, (1,))


class Ending(BaseException):
    """Is caught by no `except Exception`, and cannot even be shown."""

    def __str__(self):
        raise SystemExit(4)


class CancelError(asyncio.CancelledError, Exception):
    """Is a cancellation to awaiting callers, and an error to `except Exception`."""


ENDS = [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, CancelError, Ending]


def spring(kind, pid, make=int, *args):
    """Raise in one process; in any other, make something."""
    if os.getpid() == pid:
        raise kind(3)
    return make(*args)


@pytest.mark.parametrize("kind", ENDS)
def test_result_that_ends_process_becomes_error(container, kind):
    here = os.getpid()

    class Springing:
        def __reduce__(self):
            return spring, (kind, here)

    records, value = container.run(lambda x: x or Springing(), [((n,), {}) for n in (1, 0, 3)])
    one, trapped, three = results.read(done(*records), value, JOB)
    assert (one.unwrap(), three.unwrap()) == (1, 3)
    with pytest.raises(errors.ResultNotPicklableError, match=f"unpickled here .{kind.__name__}"):
        trapped.unwrap()


@pytest.mark.parametrize("kind", ENDS)
def test_exception_that_ends_process_becomes_error(remote, kind):
    here = os.getpid()

    class SpringingError(Exception):
        def __reduce__(self):
            return spring, (kind, here, SpringingError, *self.args)

    def work():
        raise SpringingError("what happened")

    error = remote(work).error
    assert type(error) is errors.TaskError
    assert "SpringingError: what happened" in str(error)


def test_cancelling_exception_becomes_task_error(remote):
    class StopError(SystemExit, Exception):
        pass

    for kind in (CancelError, StopError):

        def work(kind=kind):
            raise kind("enough")

        error = remote(work).error
        assert type(error) is errors.TaskError
        assert f"{kind.__qualname__}: enough" in str(error)


@pytest.mark.parametrize("attribute", ["__class__", "__dict__", "__notes__", "__cause__"])
def test_exception_with_hostile_attributes_is_returned(remote, attribute):
    here = os.getpid()

    class SpringingError(Exception):
        def __getattribute__(self, name):
            if name == attribute:
                spring(SystemExit, here)
            return super().__getattribute__(name)

    def work():
        raise SpringingError("what happened")

    assert type(remote(work).error) is SpringingError


@pytest.mark.parametrize("way", broken.WAYS, ids=lambda way: way.__name__)
def test_exception_with_failing_code_is_returned(remote, way):
    error = remote(way).error

    text, shown = failures.in_words(error), failures.with_traceback(error, None)
    assert broken.MESSAGE in text or "str() raised" in text
    notes = vars(error).get("__notes__")
    notes = notes if isinstance(notes, list) else []
    assert f", in {way.__name__}\n" in "\n".join([*notes, shown])
    assert max(len(text), len(shown)) < 70_000
    (text + shown).encode()


# --- unreadable results and functions ---------------------------------------------------------


def test_unpicklable_result_is_named(remote):
    def work():
        import threading

        return threading.Lock()

    error = remote(work).error
    assert type(error) is errors.ResultNotPicklableError
    assert "the function returned a lock, which cannot be pickled (TypeError: " in str(error)
    assert "To do: return plain data" in str(error)


def test_result_unreadable_here_is_explained(remote, only_there):
    error = remote(lambda: only_there().Thing()).error
    assert type(error) is errors.ResultNotPicklableError
    assert "No module named 'only_there'" in str(error)
    assert isinstance(error.__cause__, ModuleNotFoundError)


def test_function_unreadable_remotely_is_explained(remote, tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "only_here.py").write_text("def work():\n    pass\n")
    monkeypatch.syspath_prepend(folder)
    only_here = importlib.import_module("only_here")
    try:
        error = remote(only_here.work).error
    finally:
        del sys.modules["only_here"]
    assert type(error) is errors.TaskError
    assert "the image cannot read the function or its arguments" in str(error)
    assert "No module named 'only_here'" in str(error)
