"""CPython's own tests of executors and futures, wherever an interpreter on this machine has them.

Interpreters are often installed without their test suite. Then that of another one serves: of the
same version, or of the neighbour that lays it out alike, a module up to 3.11, a package since.
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
_NEIGHBOUR = {10: 11, 11: 10, 12: 13, 13: 12}


def folder() -> Path | None:
    """Return a folder ``test`` that holds them, this interpreter's own before others'."""
    return next(
        (found for found in _folders() if any(found.glob("test_concurrent_futures*"))), None
    )


def _folders() -> Iterator[Path]:
    minor = sys.version_info.minor
    for each in (minor, _NEIGHBOUR.get(minor, minor)):
        version = f"3.{each}"
        for python in interpreters(version):
            yield Path(python).resolve().parents[1] / "lib" / f"python{version}" / "test"
        yield Path(f"/usr/lib/python{version}/test")  # Debian has them in a package of their own


def load(place: Path) -> list[ModuleType]:
    """Import their modules from a folder."""
    import test
    from test import support

    if str(place) not in test.__path__:
        test.__path__.append(str(place))  # last: the support they need is this interpreter's
    # 3.13's ask the support for these, and that of 3.12 does not have them.
    vars(support).setdefault("Py_GIL_DISABLED", False)
    vars(support).setdefault("requires_gil_enabled", lambda _reason: lambda test: test)
    whole = importlib.import_module(NAME)
    names = [f"{NAME}.{part}" for part in _PARTS] if hasattr(whole, "__path__") else [NAME]
    return [importlib.import_module(name) for name in names]
