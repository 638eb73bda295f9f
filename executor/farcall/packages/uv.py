"""uv: resolves requirements for the jobs' platform, and fetches wheels for it.

Nothing is built, because an sdist's code would run on this machine. uv reads the user's own
settings (``UV_INDEX``, ``uv.toml`` in the home folder, netrc, keyring); of a working directory, it
reads only the settings next to a file that the user names. Its output may contain a password,
which is removed before it is shown.

https://docs.astral.sh/uv/reference/cli/
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from farcall.model.errors import FarcallError, SettingsError
from farcall.packages.target import Target

_AT_ONCE = 8
_SECRET = re.compile(r"(?<=://)[^/@\s]+@")
_UNREACHED = re.compile(
    r"failed to fetch|error sending request|could not connect|dns error|timed out|timeout|"
    r"http status (server|client) error|network (connectivity|is unreachable)",
    re.IGNORECASE,
)
_NO_WHEEL = re.compile(r"no usable wheels|no wheels with a matching|building from source", re.I)


class UvError(FarcallError):
    """uv failed; the message is uv's.

    Attributes:
        is_unreached: Whether an index was not reached.
        is_wheel_missing: Whether a distribution has no wheel for the platform.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.is_unreached = _UNREACHED.search(message) is not None
        self.is_wheel_missing = _NO_WHEEL.search(" ".join(message.split())) is not None


class Pin(NamedTuple):
    """Distribution to fetch.

    Attributes:
        name: Name of the distribution.
        version: Version; empty if a URL determines it.
        line: Requirement for uv: name and version, and hashes if known.
    """

    name: str
    version: str
    line: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}".strip()


class Source(NamedTuple):
    """Working directory of uv, and index options in addition to its settings.

    Attributes:
        folder: Folder of the user's file, or None.
        options: Lines of a requirements file that select the index.
    """

    folder: Path | None = None
    options: tuple[str, ...] = ()


def find() -> str:
    """Return uv's path.

    Raises:
        SettingsError: uv is not installed.
    """
    if importlib.util.find_spec("uv") is not None:
        with contextlib.suppress(FileNotFoundError):
            return str(importlib.import_module("uv").find_uv_bin())
    path = shutil.which("uv")
    if path is None:
        raise SettingsError(
            "uv is not installed: it fetches packages that are not installed here for the jobs' "
            "platform. Run `pip install uv`",
            option="packages",
        )
    return path


def compile_pins(
    inputs: Sequence[str], constraints: Sequence[str], target: Target, source: Source
) -> str:
    """Resolve requirements for a platform; return the pins with their hashes.

    Args:
        inputs: Requirements, or absolute paths of requirements files.
        constraints: Preferred versions of dependencies.
        target: The platform.
        source: Working directory and index options of uv.

    Raises:
        UvError: The requirements cannot be resolved, or no index was reached.
        SettingsError: uv is not installed.
    """
    with _folder() as folder:
        lines = [each for each in inputs if not Path(each).is_absolute()]
        wanted = _write(folder / "requirements.txt", lines)
        limits = _write(folder / "constraints.txt", constraints)
        files = [each for each in inputs if Path(each).is_absolute()]
        return _run(
            *("pip", "compile", "--quiet", "--no-header", "--no-annotate", "--generate-hashes"),
            *("--no-strip-extras", "--python", sys.executable, *_platform(target)),
            *("-c", limits, *files, wanted),
            folder=source.folder or folder,
        )


def export_lock(folder: Path) -> str:
    """Return a lock's pins with hashes and markers, without the project itself.

    The lock is not compared with the project, because uv would build a project whose metadata is
    dynamic, also with ``--no-build``; see `farcall.packages.lock`.

    Raises:
        UvError: The lock is invalid.
        SettingsError: uv is not installed.
    """
    return _run(
        *("export", "--quiet", "--frozen", "--no-dev", "--no-header"),
        *("--no-emit-project", "--no-emit-workspace", "--format", "requirements-txt"),
        *("--python", sys.executable),
        folder=folder,
    )


def fetch(pins: Sequence[Pin], target: Target, source: Source, to: Path) -> None:
    """Unpack the wheels of distributions into a folder with an environment's layout.

    Dependencies are ignored: only these distributions are fetched, in these versions.

    Raises:
        UvError: A distribution has no wheel, a hash differs, or no index was reached.
        SettingsError: uv is not installed.
    """
    _install(pins, target, source, "--prefix", str(to))


def missing(pins: Sequence[Pin], target: Target, source: Source) -> dict[Pin, UvError]:
    """Return the errors of all distributions that cannot be fetched."""

    def probe(pin: Pin) -> UvError | None:
        with _folder() as folder:
            try:
                _install([pin], target, source, "--dry-run", "--prefix", str(folder / "none"))
            except UvError as error:
                return error
        return None

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        answers = zip(pins, threads.map(probe, pins), strict=True)
        return {pin: error for pin, error in answers if error is not None}


def _install(pins: Sequence[Pin], target: Target, source: Source, *options: str) -> None:
    with _folder() as folder:
        lines = [*source.options, *(pin.line for pin in pins)]
        wanted = _write(folder / "requirements.txt", lines)
        _run(
            *("pip", "install", "--quiet", "--python", sys.executable, *_platform(target)),
            *("--no-deps", *options),
            *("-r", wanted),
            folder=source.folder or folder,
        )


def _platform(target: Target) -> list[str]:
    return [
        *("--python-platform", target.platform, "--python-version", target.python),
        *("--only-binary", ":all:"),
    ]


def hide(text: str) -> str:
    """Remove user names and passwords from the URLs in a text."""
    return _SECRET.sub("", text)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="farcall-uv-") as folder:
        yield Path(folder)


def _write(path: Path, lines: Sequence[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def _run(*arguments: str, folder: Path) -> str:
    done = subprocess.run(  # noqa: S603  # the user's own uv
        [find(), *arguments, "--no-progress", "--color", "never"],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode:
        message = hide(done.stderr).strip() or f"uv exited with code {done.returncode}"
        raise UvError(message)
    return done.stdout
