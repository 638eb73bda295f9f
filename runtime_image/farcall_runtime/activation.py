"""Packages of the task in its process: its imports and programs use them first.

They are in a folder with the layout of a virtual environment. The process behaves as if started by
that folder's Python, as far as possible: ``.pth`` files are read, data is found below
`sys.prefix`, and ``python3`` and scripts are the folder's.

The import order is a virtual environment's: the standard library, the task's packages, and
then whatever else this process had, the runtime's own packages included. So a distribution with
the name of a standard module behaves as it does where the workflow runs, and a task with its own
cloudpickle, obstore or typing_extensions uses that. The supervisor keeps the runtime's.
"""

from __future__ import annotations

import importlib
import os
import site
import sys

_OWN = "cloudpickle"  # this process has imported the runtime's copy while it waited


def site_packages(prefix: str) -> str:
    """Return the site-packages folder of a virtual environment."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return f"{prefix}/lib/{version}/site-packages"


def below(paths: list[str]) -> list[str]:
    """Return the entries of an import path that are not the standard library's."""
    standard = _standard()
    return [path for path in paths if path not in standard]


def _standard() -> set[str]:
    """Return the standard library's entries of the import path."""
    home = os.path.dirname(os.__file__)  # noqa: PTH120  # pathlib would cost each task 10 ms
    digits = f"{sys.version_info.major}{sys.version_info.minor}"
    archive = os.path.join(os.path.dirname(home), f"python{digits}.zip")  # noqa: PTH118, PTH120
    return {home, archive, os.path.join(home, "lib-dynload")}  # noqa: PTH118


def enter(prefix: str) -> None:
    """Make this process, and those it starts, import packages from a folder."""
    packages = site_packages(prefix)
    rest = below(sys.path)
    sys.path[:] = [path for path in sys.path if path not in rest]
    site.addsitedir(packages)  # also reads its .pth files
    sys.path += [path for path in rest if path not in sys.path]
    sys.prefix = sys.exec_prefix = prefix
    site.PREFIXES.insert(0, prefix)
    sys.executable = f"{prefix}/bin/python3"
    sys.modules.pop("sysconfig", None)  # it stores the prefix at import
    if "multiprocessing.spawn" in sys.modules:
        sys.modules["multiprocessing.spawn"].set_executable(sys.executable)
    os.environ["VIRTUAL_ENV"] = prefix
    paths = (f"{prefix}/bin", os.environ.get("PATH", os.defpath))
    os.environ["PATH"] = os.pathsep.join(filter(None, paths))
    # A .pth file of the folder contains its entries: here they would come before everything.
    os.environ.pop("PYTHONPATH", None)
    importlib.invalidate_caches()
    if os.path.isdir(f"{packages}/{_OWN}"):  # noqa: PTH112
        for name in [each for each in sys.modules if each.partition(".")[0] == _OWN]:
            del sys.modules[name]
