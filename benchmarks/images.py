"""The images whose containers are measured, and what is known of each."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.stage import ROOT

_PEER = Path(__file__).with_name("peer.Dockerfile")
#: The build has this machine's network; an argument without a value has the environment's.
_BUILD = [
    *("build", "--network", "host", "--force-rm", "--build-arg", "PIP_INDEX_URL"),
    *(f"--build-arg={name}" for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")),
    *(f"--build-arg={name}" for name in ("http_proxy", "https_proxy", "no_proxy")),
]
_LOOK = """
import importlib.metadata, json, platform
system = platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
names = {found.name for found in importlib.metadata.distributions()}
print(json.dumps([f"{system}, Python {platform.python_version()}", len(names)]))
"""


class NoContainersError(Exception):
    """There is no docker engine, or no image to run on it; the message says which."""


@dataclass(frozen=True)
class Image:
    """An image on the engine.

    Attributes:
        name: Whose.
        tag: Its name on the engine.
        size: In bytes, the base included.
        system: Operating system and Python in it.
        packages: Python distributions in it, the base's included.
    """

    name: str
    tag: str
    size: int
    system: str
    packages: int


@dataclass(frozen=True)
class Images:
    """All of a run.

    Attributes:
        label: On all of them but the base, and to be put on every container.
        base: What the others are built on.
        farcall: Ours.
        peer: The peer's, where it is measured.
    """

    label: str
    base: Image
    farcall: Image
    peer: Image | None

    @property
    def all(self) -> list[Image]:
        """All of them."""
        return [image for image in (self.base, self.farcall, self.peer) if image]


def base_name() -> str:
    """Return the base image's name: of the environment, or Docker Hub's for this Python."""
    named = [os.environ.get(f"{whose}_BASE_IMAGE") for whose in ("BENCHMARK", "TEST")]
    return next(filter(None, named), f"python:{sys.version_info[0]}.{sys.version_info[1]}-slim")


@contextlib.contextmanager
def built(*, peer: bool) -> Iterator[Images]:
    """Build the images, and remove them and their containers afterwards.

    Raises:
        NoContainersError: There is no engine, or an image could not be built.
    """
    run = uuid.uuid4().hex[:12]
    label = f"farcall.benchmark={run}"
    try:
        docker("version")
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoContainersError(f"No docker engine answers ({_reason(error)}).") from error
    tags = {"farcall": f"farcall-benchmark:{run}"}
    try:
        _build(tags["farcall"], label, str(ROOT))
        if peer:
            tags["peer"] = f"farcall-benchmark-peer:{run}"
            _build(tags["peer"], label, "-", _PEER.read_text(encoding="utf-8"))
        yield Images(
            label,
            _image("base", base_name(), label),
            _image("farcall", tags["farcall"], label),
            _image("peer", tags["peer"], label) if peer else None,
        )
    finally:
        _remove(label)


def docker(*arguments: str, stdin: str = "") -> str:
    """Run docker's command line; return what it prints."""
    done = subprocess.run(["docker", *arguments], input=stdin, capture_output=True, text=True)
    if done.returncode != 0:
        sys.stderr.write(done.stderr)
    done.check_returncode()
    return done.stdout


def _build(tag: str, label: str, context: str, dockerfile: str = "") -> None:
    named = ("--tag", tag, "--label", label, "--build-arg", f"BASE_IMAGE={base_name()}")
    try:
        docker(*_BUILD, *named, context, stdin=dockerfile)
    except subprocess.CalledProcessError as error:
        raise NoContainersError(
            f"No image could be built on {base_name()} ({_reason(error)}); BENCHMARK_BASE_IMAGE "
            "names another one, with Python and pip."
        ) from error


def _image(name: str, tag: str, label: str) -> Image:
    size = json.loads(docker("image", "inspect", tag))[0]["Size"]
    options = ("--rm", "--network", "host", "--label", label, "--entrypoint", "python3")
    system, packages = json.loads(docker("run", *options, tag, "-c", _LOOK))
    return Image(name, tag, size, system, packages)


def _remove(label: str) -> None:
    chosen = ("--quiet", "--filter", f"label={label}")
    containers = docker("ps", "--all", *chosen).split()
    if containers:
        docker("rm", "--force", "--volumes", *containers)
    images = sorted(set(docker("images", *chosen).split()))
    if images:
        docker("rmi", "--force", *images)


def _reason(error: Exception) -> str:
    text = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
    return next(iter(reversed(text.strip().splitlines())), "no reason given")
