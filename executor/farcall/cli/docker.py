"""Docker's command line: discovery, queries, registry login and runs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from farcall.model.errors import FarcallError
from farcall.model.terminal import in_a_line


def find_engine(what: str) -> str:
    """Return the path of the docker command if an engine responds to it.

    Raises:
        FarcallError: The command does not exist, or no engine responds.
    """
    docker = shutil.which("docker")
    if docker is None:
        raise FarcallError(f"{what} requires docker, which is not on the PATH. Install docker.")
    done = _run(docker, "version", "--format", "{{.Server.Version}}")
    if done.returncode:
        raise FarcallError(
            f"{what} requires a docker engine, but none responds: {_output(done)}. Start the "
            "engine, and check that `docker version` shows a server."
        )
    return docker


def inspect_image(docker: str, name: str) -> dict[str, Any] | None:
    """Return the engine's data of an image; None if the name is unknown.

    Raises:
        FarcallError: Docker rejects the name or fails.
    """
    done = _run(docker, "image", "inspect", "--", name)
    if done.returncode:
        if "no such" in done.stderr.lower():
            return None
        raise FarcallError(f"docker image inspect {name!r} failed: {_output(done)}")
    images: list[dict[str, Any]] = json.loads(done.stdout)
    return images[0]


def tag_image(docker: str, image: str, name: str) -> None:
    """Add a name to an image.

    Raises:
        FarcallError: Docker fails.
    """
    done = _run(docker, "image", "tag", "--", image, name)
    if done.returncode:
        raise FarcallError(f"docker image tag {name!r} failed: {_output(done)}")


@contextlib.contextmanager
def signed_in(registry: str, token: str) -> Iterator[dict[str, str]]:
    """Log in to a registry temporarily; yield the environment variables for docker.

    `docker login` would keep the password in the user's own configuration or in a keychain.
    farcall writes the same data to a temporary folder that only this user can open. From the
    user's own configuration, it copies only the engine's context.

    Args:
        registry: The registry's host, with a port if needed.
        token: ``user:password`` in base64.

    Source:
        https://docs.docker.com/reference/cli/docker/login/#credential-stores
    """
    own = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    config: dict[str, Any] = {"auths": {registry: {"auth": token}}}
    with contextlib.suppress(
        OSError, ValueError, AttributeError
    ):  # the file is missing or invalid
        config |= {
            name: value
            for name, value in json.loads((own / "config.json").read_bytes()).items()
            if name == "currentContext"
        }
    with tempfile.TemporaryDirectory(prefix="farcall-docker-") as folder:
        path = Path(folder, "config.json")
        path.touch(0o600)
        path.write_text(json.dumps(config))
        if (own / "contexts").is_dir():
            Path(folder, "contexts").symlink_to((own / "contexts").absolute())
        variables = {"DOCKER_CONFIG": folder}
        if os.environ.get("DOCKER_TLS_VERIFY") and not os.environ.get("DOCKER_CERT_PATH"):
            variables["DOCKER_CERT_PATH"] = str(own)  # docker searches next to its configuration
        yield variables


def run(command: Sequence[str], variables: Mapping[str, str] | None = None) -> int:
    """Run a program that handles Ctrl-C in this terminal; return its exit code."""
    sys.stdout.flush()
    environment = {**os.environ, **(variables or {})}
    with subprocess.Popen(command, env=environment) as process:  # noqa: S603  # the caller's
        try:
            while process.poll() is None:
                with contextlib.suppress(KeyboardInterrupt):
                    process.wait()
        except SystemExit:  # raised by a signal handler
            process.terminate()
            raise
    return process.returncode


def _run(docker: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603  # the user's own docker
        [docker, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def _output(done: subprocess.CompletedProcess[str]) -> str:
    return in_a_line(done.stderr.strip()) or f"exit code {done.returncode}"
