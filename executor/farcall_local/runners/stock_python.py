"""Docker's official Python image, emulated with a local interpreter.

The image's tag names the minor version: ``public.ecr.aws/docker/library/python:3.11-slim-trixie``
is emulated with ``python3.11`` in an empty virtual environment. As in a container on ECS, a job's
credentials come from an endpoint, and a job without a role has none. A job's temporary folder is
its own folder, because everything in it is deleted with the job.

Source:
    https://hub.docker.com/_/python
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from farcall import filesystem
from farcall_local.runners.credentials import RoleCredentials
from farcall_local.runners.runner import AttemptSpec, StartError

#: Prefix of the name of a server's folder for interpreters.
_FOLDER = "farcall-python-"
_OFFICIAL = re.compile(r"(?:.*/)?python:(3\.\d+)(?:[.-].*)?")
_MAKING_S = 60
_TOKEN_FILE = "authorization-token"  # noqa: S105 - a name


def minor_of(image: str) -> str | None:
    """Return the minor version of an official Python image; None for other images."""
    match = _OFFICIAL.fullmatch(image)
    return match[1] if match else None


class StockPythons:
    """Interpreters that emulate the official images, created on demand.

    Args:
        endpoint_url: URL of the local AWS emulator, which issues credentials.
        credentials: Creates the credentials of each job's role.
    """

    def __init__(self, endpoint_url: str, credentials: RoleCredentials) -> None:
        self._endpoint_url = endpoint_url
        self._credentials = credentials
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._making = asyncio.Lock()

    async def prepare(self, minor: str) -> None:
        """Make sure that the interpreter exists.

        Raises:
            StartError: This machine has no such Python.
        """
        async with self._making:
            folder = self._home(minor)
            if (folder / "pyvenv.cfg").exists():
                return
            python = _find(minor)
            if python is None:
                raise StartError(
                    f"CannotPullContainerError: no python{minor} on this machine, which would "
                    "play the image; jobs as processes need it"
                )
            command = (python, "-I", "-m", "venv", "--without-pip", str(folder))
            try:
                await asyncio.to_thread(
                    subprocess.run,
                    command,
                    check=True,
                    capture_output=True,
                    timeout=_MAKING_S,
                )
            except (OSError, subprocess.SubprocessError) as error:
                raise StartError(f"CannotPullContainerError: {error}") from error

    def environment(self, spec: AttemptSpec, minor: str) -> dict[str, str]:
        """Return the variables that lead a job to its interpreter and credentials."""
        path = os.pathsep.join([str(self._home(minor) / "bin"), os.defpath])
        variables = {"PATH": path}
        if spec.role_arn:
            where = self._credentials.grant(spec.role_arn, spec.task_id)
            variables["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = f"{self._endpoint_url}{where}"
            variables["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = str(self._token_file())
        return variables

    def revoke(self, environment: dict[str, str]) -> None:
        """Revoke the credentials from `environment`."""
        url = environment.get("AWS_CONTAINER_CREDENTIALS_FULL_URI", "")
        self._credentials.revoke(url.removeprefix(self._endpoint_url))

    def folders(self) -> list[str]:
        """Return the folders of the interpreters that exist."""
        return [self._folder.name] if self._folder is not None else []

    def close(self) -> None:
        """Remove the interpreters."""
        if self._folder is not None:
            self._folder.cleanup()

    def _home(self, minor: str) -> Path:
        return self._root() / minor

    def _root(self) -> Path:
        if self._folder is None:
            filesystem.remove_folders(_FOLDER)
            prefix = f"{_FOLDER}{filesystem.identity(os.getpid())}-"
            self._folder = tempfile.TemporaryDirectory(prefix=prefix)
        return Path(self._folder.name)

    def _token_file(self) -> Path:
        path = self._root() / _TOKEN_FILE
        if not path.exists():
            path.write_text(self._credentials.token)
        return path


def _find(minor: str) -> str | None:
    """Return an interpreter of a minor version outside of virtual environments."""
    name = f"python{minor}"
    if minor == f"{sys.version_info.major}.{sys.version_info.minor}":
        own = Path(sys.base_prefix, "bin", name)
        if own.exists():
            return str(own)
    return shutil.which(name)
