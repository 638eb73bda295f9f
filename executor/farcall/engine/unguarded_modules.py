"""Modules that run jobs while they are imported."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import FrameType

from farcall.model.errors import FarcallError
from farcall_runtime import sources

_imported = ""
"""Module or file that a command is importing; empty if there is none."""


class UnguardedModuleError(FarcallError):
    """A module runs jobs while it is imported."""


@contextlib.contextmanager
def importing(name: str) -> Iterator[None]:
    """Reject sessions and calls while a command imports the user's module.

    Args:
        name: The module, or the path of its file.
    """
    global _imported
    _imported = name
    try:
        yield
    finally:
        _imported = ""


def check_import() -> None:
    """Reject jobs of a module that a command is importing.

    Raises:
        UnguardedModuleError: A module is being imported; the message names the line.
    """
    imported = _imported or sources.making
    if not imported:
        return
    frame = next(_module_frames(), None)
    who = "the job runs the script" if sources.making else "this command imports the module"
    raise _unguarded(frame, imported, f"{who} only to find the function")


def check_blocking_import() -> None:
    """Reject blocking calls of a module that is being imported.

    Pickling a function waits for the import of its module, in another thread.

    Raises:
        UnguardedModuleError: A module is being imported; the message names the line.
    """
    check_import()
    for frame in _module_frames():
        name = frame.f_globals.get("__name__", "")
        spec = getattr(sys.modules.get(name), "__spec__", None)
        if getattr(spec, "_initializing", False):
            raise _unguarded(frame, name, "a job can only import a module that is complete")


def _module_frames() -> Iterator[FrameType]:
    """Yield the callers that are top-level code of modules, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            yield frame
        frame = frame.f_back


def _unguarded(frame: FrameType | None, imported: str, reason: str) -> UnguardedModuleError:
    where = f"line {frame.f_lineno} of {frame.f_code.co_filename}" if frame else imported
    return UnguardedModuleError(
        f"{where} runs jobs while it is imported: {reason}. Put the lines that run jobs below "
        '`if __name__ == "__main__":`, or into a function that is called after the import.'
    )
