"""Remedies for errors that a function raised because it ran in a job."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from farcall.model.names import ENV_EMULATOR_PYTHON
from farcall.payload.sources import why_missing, why_module_is_missing

_IS_PLAIN = (
    "Inside a job, a farcall task is a plain function: call it as function(...), without await. "
    "Its calls become jobs only where the workflow runs"
)
_IS_LACKING = (
    "The job's Python has no {1}: name its package in extra_packages, set packages to "
    '"auto", which sends what your code imports, or build an image that has it '
    "(`farcall image build --packages {1}`)"
)
_LACKS_LIBRARY = (
    "The job's image has no {0}, a system library, which packages do not contain. Set image to "
    "one that has it (`farcall image build --base IMAGE`), or use a package that does not need "
    "it: opencv-python-headless, for example, does not need libGL"
)
_IS_TOO_OLD = (
    "The job's image has an older {0} than a package was built for: set image to one with a newer "
    "Linux, or name an older version of the package"
)
_IS_NOT_SENT = "The job has no file {0}"
_IS_LACKING_HERE = (
    "The local AWS emulator runs jobs with its own Python, {1}, which has no {0}; yours is {2}. "
    "Start the emulator from the environment of your project (python -m farcall local), or set "
    'packages to "auto", which sends what your code imports'
)
_HINTS = (
    (
        "AttributeError",
        r"'(function|method)' object has no attribute '(map|starmap|submit|run|local)'",
        _IS_PLAIN,
    ),
    ("TypeError", r"object .+ can't be used in 'await' expression", _IS_PLAIN),
    ("TypeError", r"'.+' object can't be awaited", _IS_PLAIN),
    ("ValueError|TypeError", r"a coroutine was expected, got .*", _IS_PLAIN),
    ("TypeError", r"An asyncio.Future, a coroutine or an awaitable is required", _IS_PLAIN),
    (
        "ImportError|OSError",
        r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file: No such file or directory",
        _LACKS_LIBRARY,
    ),
    ("ImportError|OSError", r".*version `(GLIBC|GLIBCXX)_[\d.]+' not found .*", _IS_TOO_OLD),
    (
        "FileNotFoundError",
        r"\[Errno 2\] No such .+: (?:\w+Path\()?'([^']+)'\)?",
        _IS_NOT_SENT,
    ),
    ("ModuleNotFoundError", r"No module named '((\w+)[^']*)'.*", _IS_LACKING),
)
"""Class and message of an error, and the hint, which uses the message's groups."""


def hint(kind: str, message: str) -> str:
    """Return the remedy for an error; empty if there is none."""
    for kinds, text, remedy in _HINTS:
        meant = re.fullmatch(text, message)
        if meant is None or not re.fullmatch(kinds, kind.rpartition(".")[2]):
            continue
        if remedy is _IS_LACKING:
            return _missing_module(*meant.groups())
        if remedy is _IS_NOT_SENT:
            why = why_missing(meant[1])
            return f"The job has no file {meant[1]}: {why}" if why else ""
        return remedy.format(*meant.groups())
    return ""


def _missing_module(module: str, package: str) -> str:
    if why := why_module_is_missing(module):
        return f"The job has no module {module}: {why}"
    emulator = os.environ.get(ENV_EMULATOR_PYTHON, sys.executable)
    if Path(emulator).parent != Path(sys.executable).parent:
        return _IS_LACKING_HERE.format(package, emulator, sys.executable)
    return _IS_LACKING.format(module, package)
