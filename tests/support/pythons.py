"""Interpreters of other versions, including pyenv's, for tests that install farcall."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# Read here, because tests get another home, and pyenv is in the user's home.
_ENVIRONMENT = dict(os.environ)


def interpreters(version):
    """Yield possible paths of a Python version's interpreter."""
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        yield sys.executable
    if found := shutil.which(f"python{version}", path=_ENVIRONMENT.get("PATH")):
        yield found
    pyenv = Path(_ENVIRONMENT.get("PYENV_ROOT") or Path(_ENVIRONMENT.get("HOME", "/"), ".pyenv"))
    yield from map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python"), reverse=True))


def find(version):
    """Return a working interpreter; pyenv's shims on the PATH may not work."""
    ask = "import sys; print(*sys.version_info[:2], sep='.')"
    for python in interpreters(version):
        done = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return python
    reason = f"there is no Python {version} on this machine"
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason}; in CI this is an error")
    pytest.skip(reason)  # a developer's machine may lack versions
