"""CPython's own tests of executors and futures, from any interpreter on this machine.

Interpreters are often installed without their test suite. Then the test suite of another
interpreter is used: of the same version, or of a neighboring version with the same layout, which
is a module up to 3.11 and a package since 3.12.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from tests.support.pythons import interpreters

NAME = "test.test_concurrent_futures"
_PARTS = (
    "util",
    "executor",
    "test_wait",
    "test_as_completed",
    "test_shutdown",
    "test_future",
    "test_process_pool",
)
_NEIGHBOUR = {11: 10, 12: 13, 13: 12}  # their tests run here, too; some installations lack them


def folder() -> Path | None:
    """Return a folder ``test`` with the tests, preferably this interpreter's own."""
    return next(
        (found for found in _folders() if any(found.glob("test_concurrent_futures*"))), None
    )


def _folders() -> Iterator[Path]:
    minor = sys.version_info.minor
    for each in (minor, _NEIGHBOUR.get(minor, minor)):
        version = f"3.{each}"
        for python in interpreters(version):
            yield Path(python).resolve().parents[1] / "lib" / f"python{version}" / "test"
        yield Path(f"/usr/lib/python{version}/test")  # from a separate package on Debian


def load(place: Path) -> list[ModuleType]:
    """Import the test modules from a folder."""
    import test
    from test import support

    if str(place) not in test.__path__:
        test.__path__.append(str(place))  # last, so that test.support is this interpreter's
    # The tests of 3.13 use these names, which test.support of 3.12 lacks.
    vars(support).setdefault("Py_GIL_DISABLED", False)
    vars(support).setdefault("requires_gil_enabled", lambda _reason: lambda test: test)
    whole = importlib.import_module(NAME)
    names = [f"{NAME}.{part}" for part in _PARTS] if hasattr(whole, "__path__") else [NAME]
    return [importlib.import_module(name) for name in names]
