"""Packages of a task (Covalent's ``DepsPip``), installed before unpickling.

They are installed into a private folder that takes precedence over the image's packages: the image
may be read-only and belong to another user, and on the local AWS emulator it is the user's own
environment. Packages that the image has in a matching version are not installed again.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import importlib.util
import os
import shutil
import site
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

from farcall_runtime.contract import module_arguments

_NO_CHANGES = "Would make no changes"


class InstallError(RuntimeError):
    """Packages could not be installed; the installer's output is in the task's stderr."""


def install(packages: Sequence[str], requirements: str = "") -> None:
    """Install packages with uv if available, else with pip.

    Args:
        packages: Requirements in pip's command line syntax.
        requirements: Content of a requirements file, which replaces ``packages``.

    Raises:
        InstallError: There is no installer, or it failed.
    """
    if not packages and not requirements:
        return
    with tempfile.TemporaryDirectory(prefix="farcall-requirements-") as folder:
        wanted = list(packages)
        names = " ".join(wanted)
        if requirements:
            file = Path(folder, "requirements.txt")
            file.write_text(requirements, encoding="utf-8")
            wanted = ["-r", str(file)]
            names = ", ".join(requirements.split("\n"))
        uv = _find_uv()
        if uv is None:
            _run([*_pip(), "install", "--no-input", "--disable-pip-version-check", *wanted], names)
        elif not _is_satisfied(uv, wanted):
            _run(
                [uv, "pip", "install", "--python", str(_overlay() / "bin/python"), *wanted], names
            )
    importlib.invalidate_caches()


def _find_uv() -> str | None:
    path = shutil.which("uv")
    if path is None and importlib.util.find_spec("uv") is not None:
        uv = importlib.import_module("uv")
        path = str(uv.find_uv_bin())
    return path


def _is_satisfied(uv: str, wanted: list[str]) -> bool:
    """Return whether the image has all packages, which uv cannot see from the overlay."""
    command = [uv, "pip", "install", "--dry-run", "--python", sys.executable, *wanted]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)  # noqa: S603
    return done.returncode == 0 and _NO_CHANGES in done.stderr


def _pip() -> list[str]:
    has_pip = importlib.util.find_spec("pip") is not None
    overlay = _overlay(with_pip=not has_pip)
    return [str(overlay / "bin/python"), *module_arguments("pip")]


def _run(command: list[str], names: str) -> None:
    sys.stderr.flush()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=2)  # noqa: S603
    if done.returncode:
        raise InstallError(
            f"{names} could not be installed ({Path(command[0]).name} exited with code "
            f"{done.returncode}; see its output in stderr); check the names and versions, and "
            "whether the job can reach the package index, or build the packages into the image"
        )


@functools.cache
def _overlay(*, with_pip: bool = False) -> Path:
    """Create the folder, a virtual environment, and put it first on the import path."""
    folder = Path(tempfile.mkdtemp(prefix="farcall-packages-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        venv.EnvBuilder(with_pip=with_pip).create(folder)
    except (OSError, subprocess.CalledProcessError) as error:
        raise InstallError(
            f"cannot create a folder for packages in {tempfile.gettempdir()} ({error}); the job "
            "needs a writable temporary folder, and uv or pip in the image"
        ) from error
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = str(folder / "lib" / version / "site-packages")
    # pip must see this process's packages, which may come from a virtual environment.
    below = [path for path in sys.path if Path(path).is_dir()]
    Path(packages, "farcall-below.pth").write_text("\n".join(below), encoding="utf-8")
    sys.path.insert(0, packages)
    site.addsitedir(packages)
    for name, path in (("PYTHONPATH", packages), ("PATH", str(folder / "bin"))):
        os.environ[name] = os.pathsep.join(filter(None, (path, os.environ.get(name))))
    return folder
