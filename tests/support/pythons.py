"""Interpreters of other versions, for tests that install farcall: pyenv's, too; needed in CI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# Here, because tests get another home, and pyenv is in the user's own.
_ENVIRONMENT = dict(os.environ)


def interpreters(version):
    """Where a Python of a version may be."""
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        yield sys.executable
    if found := shutil.which(f"python{version}", path=_ENVIRONMENT.get("PATH")):
        yield found
    pyenv = Path(_ENVIRONMENT.get("PYENV_ROOT") or Path(_ENVIRONMENT.get("HOME", "/"), ".pyenv"))
    yield from map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python"), reverse=True))


def find(version):
    """Return an interpreter that runs; pyenv's stand-ins on the PATH may not."""
    ask = "import sys; print(*sys.version_info[:2], sep='.')"
    for python in interpreters(version):
        done = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return python
    reason = f"there is no Python {version} on this machine"
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason}; in CI this is an error")
    pytest.skip(reason)  # a developer need not have them all
