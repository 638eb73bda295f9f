"""Requirements of the tasks: option ``packages`` as pins for the jobs' platform.

A list or a file is resolved once, and the result is kept in the user's cache until the list, one
of the files, or the user's uv settings change. So all jobs get the same versions.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from farcall.model.errors import FarcallError, SettingsError
from farcall.packages import cache, lock, uv
from farcall.packages.target import Target
from farcall.packages.uv import Pin, Source, UvError

LOCAL = "local"
"""Value of ``packages``: the locally installed packages."""

AUTO = "auto"
"""Value of ``packages``: the locally installed packages that the code imports."""

LOCK, PROJECT = "uv.lock", "pyproject.toml"
_INCLUDE = re.compile(r"\s*(?:-r|--requirement|-c|--constraint)[\s=]+(\S+)")
_INDEX = re.compile(
    r"\s*(-i|--index-url|--extra-index-url|-f|--find-links|--no-index|--pre|--trusted-host)\b"
)
_HASHES = re.compile(r"( --hash[= ]\S+)+")
_PATH = re.compile(r"(-e\s|--editable|file:|\.{0,2}/)")
_MOST_FILES = 100


class Pins(NamedTuple):
    """Resolved requirements.

    Attributes:
        pins: The distributions.
        sources: Folders of the user's own distributions, whose modules are pickled by value.
        source: Source for uv to fetch from.
    """

    pins: Sequence[Pin]
    sources: Sequence[str]
    source: Source


def resolve(
    requirements: Sequence[str],
    versions: Mapping[str, str],
    target: Target,
    source: Source = Source(),  # noqa: B008  # immutable
) -> Pins:
    """Resolve a list of requirements.

    Args:
        requirements: Requirements such as ``numpy>=2``.
        versions: Versions that dependencies keep, by name, unless they are required themselves.
        target: The platform.
        source: Source for uv to fetch from.

    Raises:
        SettingsError: The requirements cannot be resolved, or uv is not installed.
        FarcallError: No index was reached.
    """
    named = {canonicalize_name(Requirement(each).name) for each in requirements}
    limits = [f"{name}=={versions[name]}" for name in versions if name not in named]
    return _resolve(requirements, limits, target, source, {})


def resolve_file(path: Path, extra: Sequence[str], target: Target) -> Pins:
    """Resolve a requirements file, pyproject.toml or uv.lock.

    Args:
        path: The file.
        extra: Further requirements. With a lock, other distributions keep the lock's versions.
        target: The platform.

    Raises:
        SettingsError: The file does not exist, or cannot be resolved; or uv is not installed.
        FarcallError: No index was reached.
    """
    path = path.expanduser().absolute()
    if not path.is_file():
        raise SettingsError(
            f"packages: {path} does not exist. Name an existing file", option="packages"
        )
    if path.name == LOCK:
        return _resolve_lock(path, extra, target)
    if path.name == PROJECT:
        _check_project(path)
    read = _included(path)
    source = Source(path.parent, tuple(read.options))
    resolved = _resolve([str(path), *extra], [], target, source, read.files)
    # uv writes the hashes of the index.
    pins = [
        pin._replace(line=f"{pin.line.partition(' --hash')[0]} {read.hashes[pin.name]}")
        if pin.name in read.hashes
        else pin
        for pin in resolved.pins
    ]
    return resolved._replace(pins=pins)


def _check_project(path: Path) -> None:
    """Reject a project whose file does not list its dependencies in the standard's form.

    https://packaging.python.org/en/latest/specifications/pyproject-toml/
    """
    document = lock.read_document(path)
    project = document.get("project", {})
    is_dynamic = "dependencies" in project.get("dynamic", ())
    if "dependencies" in document.get("tool", {}).get("poetry", {}) and (
        is_dynamic or "dependencies" not in project
    ):
        why, command = "lists its dependencies in Poetry's own table", "poetry export"
    elif is_dynamic:
        why = "has dynamic dependencies, which only its build backend's code knows"
        command = "uv pip compile pyproject.toml"
    else:
        return
    raise SettingsError(
        f"packages: {path} {why}. Move them to [project] dependencies, or run `{command} -o "
        'requirements.txt` and set packages="requirements.txt"',
        option="packages",
    )


def _resolve_lock(path: Path, extra: Sequence[str], target: Target) -> Pins:
    project = path.with_name(PROJECT)
    files = _digests([path, project])
    if str(project) not in files:
        raise SettingsError(
            f"packages: {path} has no {PROJECT} next to it. Add it, or name another file",
            option="packages",
        )
    key = cache.key_of("lock", str(path), *map(str, sorted(files.items())), *_surroundings())
    noted = cache.read(key)
    if noted is None:
        lock.check(path, PROJECT)
        noted = {"text": _explained(target, lambda: uv.export_lock(path.parent))}
        cache.write(key, noted)
    source = Source(path.parent)
    pins, sources = _read(noted["text"], target)
    if extra:
        locked = {pin.name: pin.version for pin in pins if pin.version}
        more = resolve(extra, locked, target, source).pins
        pins = list({pin.name: pin for pin in (*pins, *more)}.values())
    return Pins(pins, sources, source)


def _resolve(
    inputs: Sequence[str],
    constraints: Sequence[str],
    target: Target,
    source: Source,
    files: Mapping[str, str],
) -> Pins:
    """Resolve with uv, unless the result is cached and its files are unchanged."""
    parts = [*inputs, "", *sorted(constraints), "", *target, *_surroundings()]
    key = cache.key_of("pins", str(source.folder), *parts, *map(str, sorted(files.items())))
    noted = cache.read(key)
    if noted is None or noted["files"] != _digests(map(Path, noted["files"])):
        text = _explained(target, lambda: uv.compile_pins(inputs, constraints, target, source))
        _, sources = _read(text, target)
        projects = [Path(source.folder or "", each, PROJECT) for each in sources]
        noted = {"text": text, "files": _digests(projects)}
        cache.write(key, noted)
    pins, sources = _read(noted["text"], target)
    return Pins(pins, sources, source)


def _explained(target: Target, compile_text: Callable[[], str]) -> str:
    """Return uv's output; its errors become errors of the option."""
    try:
        return compile_text()
    except UvError as error:
        raise explain(error, target) from error


def explain(error: UvError, target: Target) -> FarcallError:
    """Return the option's error for an error of uv."""
    if error.is_unreached:
        return FarcallError(f"uv could not reach the package index: {error}. Try again")
    if error.is_wheel_missing:
        return SettingsError(
            f"packages have no wheels for {target}, and farcall does not build any: {error}\n"
            "Use a version that has a wheel, leave the package out with exclude_packages, or "
            "build an image (option image)",
            option="packages",
        )
    return SettingsError(f"uv cannot resolve packages for {target}: {error}", option="packages")


def _surroundings() -> list[str]:
    """Return uv's variables, which affect its output; they are hashed and not stored."""
    return [f"{name}={text}" for name, text in sorted(os.environ.items()) if name[:3] == "UV_"]


def _digests(paths: Iterable[Path]) -> dict[str, str]:
    digests = {}
    for path in paths:
        try:
            digests[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError:
            continue
    return digests


class _Included(NamedTuple):
    """Contents of a requirements file and the files that it includes.

    Attributes:
        files: Digests of the files.
        options: Lines that select indexes.
        hashes: Hashes of distributions by name.
    """

    files: dict[str, str]
    options: list[str]
    hashes: dict[str, str]


def _included(path: Path) -> _Included:
    read = _Included({}, [], {})
    waiting = [path]
    while waiting and len(read.files) < _MOST_FILES:
        one = waiting.pop(0)
        if str(one) in read.files:
            continue
        read.files.update(_digests([one]))
        if one.name == PROJECT or str(one) not in read.files:
            continue
        for line in _lines(_text_of(one)):
            if _INDEX.match(line):
                read.options.append(line)
            elif include := _INCLUDE.match(line):
                waiting.append(one.parent / include[1])
            elif hashes := _HASHES.search(line):
                name = canonicalize_name(re.split(r"[\s\[=;@]", line)[0])
                read.hashes[name] = hashes[0].strip()
    return read


def _text_of(path: Path) -> str:
    content = path.read_bytes()
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise SettingsError(
            f"packages: {path} is encoded in UTF-16. Save it as UTF-8, in PowerShell with "
            f"`(Get-Content {path.name}) | Set-Content -Encoding utf8 {path.name}`",
            option="packages",
        )
    return content.decode(errors="replace")


def _lines(text: str) -> list[str]:
    """Return the lines of a requirements file, with continuation lines joined."""
    return [" ".join(line.split()) for line in re.sub(r"\\\r?\n", " ", text).splitlines()]


def _read(text: str, target: Target) -> tuple[list[Pin], list[str]]:
    """Return the pins in uv's output, and the user's own folders in it."""
    pins: list[Pin] = []
    sources: list[str] = []
    for line in _lines(text):
        if _PATH.match(line):
            sources.append(_folder_of(line))
        elif line and not line.startswith(("#", "-")):
            pin = _pin(line, target, sources)
            if pin is not None:
                pins.append(pin)
    return pins, sources


def _pin(line: str, target: Target, sources: list[str]) -> Pin | None:
    wanted, dashes, hashes = line.partition(" --hash")
    try:
        requirement = Requirement(wanted)
    except InvalidRequirement as error:
        raise FarcallError(f"uv printed {uv.hide(wanted)!r}, not a valid requirement") from error
    if not target.needs(requirement):
        return None
    name = canonicalize_name(requirement.name)
    url = requirement.url or ""
    if url.startswith("file:") and not url.partition("#")[0].endswith(".whl"):
        sources.append(unquote(urlsplit(url).path))
        return None
    if uv.hide(url) != url:
        raise SettingsError(
            f"{requirement.name} has a password in its URL, which farcall must not store. Put it "
            "into netrc or uv's settings",
            option="packages",
        )
    version = next((each.version for each in requirement.specifier if each.operator == "=="), "")
    exact = f"{name} @ {url}" if url else f"{name}{requirement.specifier}"
    return Pin(name, version, f"{exact}{dashes}{hashes}")


def _folder_of(line: str) -> str:
    path = re.sub(r"^(-e|--editable)[\s=]+", "", line).partition(" ;")[0].partition(" #")[0]
    return unquote(urlsplit(path).path) if path.startswith("file:") else path.strip()
