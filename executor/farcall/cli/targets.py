"""Resolution of ``MODULE:FUNCTION`` on a command line."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import click

from farcall.client.task import Task
from farcall.engine.unguarded_modules import UnguardedModuleError, importing
from farcall.model.errors import FarcallError
from farcall_runtime import failures

_MOST_NAMES = 20


class Target(NamedTuple):
    """Function to call.

    Attributes:
        name: Name on the command line.
        workflow: Name of the module, used as the workflow's name.
        callee: The function, or an executor's task for it.
    """

    name: str
    workflow: str
    callee: Any

    @property
    def function(self) -> Any:
        """Underlying function."""
        return self.callee.function if isinstance(self.callee, Task) else self.callee


def find(name: str) -> Target:
    """Import a module and find a function in it.

    Output of the module's import goes to stderr.

    Args:
        name: ``package.module:function`` or ``path/file.py:function``; a function in a class or
            another object is named with dots.

    Raises:
        click.UsageError: The module or function does not exist.
        FarcallError: The module's own code failed.
    """
    place, _, function = name.rpartition(":")
    if not place or not function:
        raise click.UsageError(
            f"{name!r} does not name a function. Write MODULE:FUNCTION, for example train:fit, "
            "package.train:fit or path/train.py:fit."
        )
    is_file = place.endswith(".py")
    with importing(place), contextlib.redirect_stdout(sys.stderr):
        module = _import_file(Path(place)) if is_file else _import(place)
    workflow = Path(place).name if is_file else place
    return Target(name, workflow, _find(module, place, function))


def _import(name: str) -> ModuleType:
    """Import a module, with the working directory first, as with ``python -m``."""
    _add_to_path(Path.cwd())
    with _as_own_fault(name):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not error.name or not f"{name}.".startswith(f"{error.name}."):
                raise  # the module imports a missing module
            missing = error.name
    raise click.UsageError(f"no module {missing!r} in {Path.cwd()}, and none is installed.")


def _import_file(path: Path) -> ModuleType:
    """Import a file under the module name that it has in its own folder."""
    if not path.is_file():
        raise click.UsageError(f"file {path} does not exist.")
    path = path.resolve()
    _add_to_path(path.parent)
    # The file takes precedence over an imported module with the same name.
    name = path.stem if path.stem.isidentifier() and _is_free(path) else f"_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise click.UsageError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with _as_own_fault(str(path)):
        spec.loader.exec_module(module)
    return module


def _is_free(path: Path) -> bool:
    spec = importlib.util.find_spec(path.stem)
    return spec is None or (spec.origin is not None and Path(spec.origin).resolve() == path)


def _add_to_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


@contextlib.contextmanager
def _as_own_fault(name: str) -> Iterator[None]:
    """Show the location of a failure in a module's code, without the importing frames."""
    try:
        yield
    except (UnguardedModuleError, click.UsageError):
        raise
    except Exception as error:
        stack = error.__traceback__
        while stack is not None and _is_import(stack.tb_frame.f_code.co_filename):
            stack = stack.tb_next
        text = failures.with_traceback(error, stack).rstrip()
        hint = ""
        if isinstance(error, ImportError) and "relative import" in failures.message(error):
            hint = ". Write a file of a package with dots, for example package.train:fit"
        raise FarcallError(f"cannot import {name}{hint}:\n{text}") from error


def _is_import(file: str) -> bool:
    return file.startswith((__file__, "<frozen")) or "importlib" in file


def _find(module: ModuleType, place: str, function: str) -> Any:
    value: Any = module
    for part in function.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            hint = _near(part, _callables(value))
            raise click.UsageError(f"{place} has no function {function!r}. {hint}") from None
    if not callable(value):
        raise click.UsageError(
            f"{place}:{function} is a {type(value).__name__}, not a function. "
            f"{_near(function, _callables(module))}"
        )
    return value


def _callables(owner: object) -> list[str]:
    """Return the functions and tasks that a module or class defines itself."""
    home = getattr(owner, "__name__", None)
    return [
        name
        for name, value in vars(owner).items()
        if not name.startswith("_")
        and (isinstance(value, Task) or inspect.isroutine(value))
        and (not inspect.ismodule(owner) or getattr(value, "__module__", None) == home)
    ]


def _near(wanted: str, there: Iterable[str]) -> str:
    """Return the most similar name, or all available names if there is none."""
    names = sorted(there)
    close = difflib.get_close_matches(wanted, names, 1)
    if close:
        return f"Did you mean {close[0]}?"
    if not names:
        return "None is available."
    rest = ", ..." if len(names) > _MOST_NAMES else ""
    return f"Available: {', '.join(names[:_MOST_NAMES])}{rest}"
