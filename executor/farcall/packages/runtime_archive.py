"""Archive of the runtime for containers whose image contains only Python.

It contains farcall_runtime and its dependencies: cloudpickle, obstore, and before Python 3.13
typing_extensions. It is unpacked as one folder of modules. For jobs on this platform, the
installed distributions are used; if the platform differs, or obstore was compiled here, uv fetches
the same version of obstore.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from farcall.model.errors import FarcallError
from farcall.packages import cache, installed, uv
from farcall.packages.archives import Archive, File, build
from farcall.packages.target import Target

_PURE = ("cloudpickle", *(["typing-extensions"] if sys.version_info < (3, 13) else []))
_COMPILED = "obstore"
_LEVEL = 6
"""zlib's compression level: higher, because every container fetches the archive."""

_PORTABLE = "manylinux"


def seal(target: Target, folder: Path) -> tuple[tuple[str, int], Callable[[], Archive]]:
    """Return digest and size of a platform's archive, and a function that creates it.

    Digest and size are cached, so that the archive is usually not created to find them.

    Raises:
        FarcallError: The archive cannot be created here.
    """
    key = _key(target)
    made: list[Archive] = []

    def make() -> Archive:
        if not made:
            made.append(_make(target, folder))
            cache.write(key, {"sha256": made[0].sha256, "size": made[0].size})
        return made[0]

    match cache.read(key):
        case {"sha256": str(sha256), "size": int(size)}:
            return (sha256, size), make
    archive = make()
    return (archive.sha256, archive.size), make


def versions() -> dict[str, str]:
    """Return the versions of the distributions in the archive, by name."""
    version_of = {}
    for name in (*_PURE, _COMPILED):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version_of[name] = importlib.metadata.version(name)
    return version_of


def _make(target: Target, folder: Path) -> Archive:
    here = {each.key: each for each in installed.scan()}
    files = [*_own(), *(file for name in _PURE for file in _files(_find(name, here)))]
    obstore = _find(_COMPILED, here)
    try:
        if _is_fit(obstore, target):
            return build([*files, *_files(obstore)], folder, _LEVEL)
        with tempfile.TemporaryDirectory(prefix="farcall-runtime-") as place:
            files += _fetched(installed.describe(obstore).version, target, Path(place))
            return build(files, folder, _LEVEL)
    except OSError as error:
        raise FarcallError(
            f"cannot pack farcall's runtime for the jobs: {error}. Fix that, or set image to one "
            "built from farcall's Dockerfile"
        ) from error


def _key(target: Target) -> str:
    """Return a cache key that changes if the archive's contents change."""
    digest = hashlib.sha256()
    for file in _own():
        assert isinstance(file.source, Path)  # noqa: S101  # for the type checker
        digest.update(f"{file.name}:".encode() + file.source.read_bytes())
    here = {each.key: each for each in installed.scan()}
    stamps = (_find(name, here).stamp for name in (*_PURE, _COMPILED))
    made_by = sys.version, zlib.ZLIB_RUNTIME_VERSION, str(_LEVEL)
    return cache.key_of("runtime", str(target), *made_by, digest.hexdigest(), *stamps)


def _own() -> list[File]:
    spec = importlib.util.find_spec("farcall_runtime")
    places = (spec.submodule_search_locations if spec else None) or []
    folder = Path(next(iter(places)))
    return [File(f"{folder.name}/{path.name}", path) for path in sorted(folder.glob("*.py"))]


def _find(name: str, here: Mapping[str, installed.Found]) -> installed.Found:
    if name in here:
        return here[name]
    raise FarcallError(
        f"{name} has no package metadata here, so it cannot be sent to jobs. Reinstall farcall "
        "in a virtual environment, or set image to one built from farcall's Dockerfile"
    )


def _files(distribution: installed.Found) -> Iterator[File]:
    """Yield a distribution's modules and metadata, without its scripts."""
    about = installed.describe(distribution)
    if about.problem:
        raise FarcallError(f"{about.name} {about.problem}; or set image")
    for file in installed.content(distribution, about):
        inside = file.name.removeprefix(f"{installed.SITE}/")
        if inside != file.name:
            yield file._replace(name=inside)


def _is_fit(distribution: installed.Found, target: Target) -> bool:
    """Return whether a locally installed distribution works in the jobs.

    One installed by conda, or compiled here, may need a newer libc than the image's.
    """
    try:
        wheel = (distribution.info / "WHEEL").read_text(encoding="utf-8")
    except OSError:
        return False
    return target.is_here and _PORTABLE in wheel and not installed.describe(distribution).is_conda


def _fetched(version: str, target: Target, place: Path) -> Iterator[File]:
    pin = uv.Pin(_COMPILED, version, f"{_COMPILED}=={version}")
    try:
        uv.fetch([pin], target, uv.Source(), place)
    except FarcallError as error:
        raise FarcallError(
            f"{pin} cannot be fetched for {target}: {error}. Set architecture to the jobs' "
            "architecture, or image to one built from farcall's Dockerfile"
        ) from error
    for distribution in installed.scan([str(place / installed.SITE)]):
        yield from _files(distribution)
