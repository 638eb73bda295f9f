"""Archive of a distribution: a reproducible zip file.

Names are sorted, all times are 1 January 1980, modes are 0644 or 0755, and folders have no
entries. Next to each source is its compiled file, because otherwise every container would compile
it again. The compiled files are valid without checking the source (``unchecked-hash``), because an
archive is verified as a whole.

This file is also the program that creates an archive in a separate process, because compiling is
slow, and its result depends on a process's interned strings and hash seed. It imports no farcall
module.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import marshal
import os
import posixpath
import shutil
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

LEVEL = 1
"""zlib's compression level: higher levels take twice as long and save a tenth."""

_TESTS = {"test", "tests"}
_TIME = (1980, 1, 1, 0, 0, 0)
_UNIX = 3
_REGULAR = 0o100000
_UNCHECKED_HASH = 1
_STEP_BYTES = 1024 * 1024


class File(NamedTuple):
    """File of an archive.

    Attributes:
        name: Path in the archive: relative, with slashes, without ``.`` or ``..``.
        source: Local path, or the content.
        is_executable: Whether it is executable.
    """

    name: str
    source: Path | bytes
    is_executable: bool = False


class Archive(NamedTuple):
    """Archive file.

    Attributes:
        path: Path of the file.
        sha256: Digest of the file, hexadecimal.
        size: Size of the file in bytes.
        unpacked_bytes: Total size of its contents in bytes.
    """

    path: Path
    sha256: str
    size: int
    unpacked_bytes: int

    def pieces(self) -> Iterator[bytes]:
        """Yield the archive's bytes from the beginning."""
        with self.path.open("rb") as file:
            while piece := file.read(_STEP_BYTES):
                yield piece


class BuildError(OSError):
    """An archive could not be created: a file is unreadable, or the disk is full."""


def build(files: Iterable[File], folder: Path, level: int = LEVEL) -> Archive:
    """Create an archive in a separate process; most of the time is spent compiling.

    Sources in folders named ``test`` or ``tests`` are not compiled, nor are sources that Python
    cannot compile. The compiled files are for this interpreter's minor version, on any
    architecture.

    Args:
        files: The files of the archive.
        folder: Folder for the archive, whose name is its digest.
        level: zlib's compression level, 0 to 9.

    Raises:
        BuildError: A file is unreadable, or the disk is full.
        ValueError: A name is invalid or occurs twice.
    """
    listed = sorted(files, key=lambda file: file.name)
    for before, file in zip([None, *listed], listed, strict=False):
        if not is_name(file.name) or (before and before.name == file.name):
            raise ValueError(f"{file.name!r} is a duplicate or not a valid name in an archive")
    handle, temporary = tempfile.mkstemp(".part", dir=folder)
    os.close(handle)
    order = {
        "path": temporary,
        "level": level,
        "files": [[each.name, *_sent(each.source), each.is_executable] for each in listed],
    }
    try:
        answer = _run(order)
        path = folder / answer["sha256"]
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return Archive(path, answer["sha256"], answer["size"], answer["unpacked_bytes"])


def is_name(name: str) -> bool:
    """Return whether a name is valid in an archive."""
    return (
        bool(name)
        and name == posixpath.normpath(name)
        and not name.startswith(("/", "../"))
        and name not in (".", "..")
        and "\\" not in name
        and name.isprintable()
    )


def _sent(source: Path | bytes) -> tuple[str, str]:
    """Return a file's source for an order: a path, or encoded bytes."""
    if isinstance(source, Path):
        return str(source), ""
    return "", base64.b64encode(source).decode()


def _run(order: dict[str, Any]) -> dict[str, Any]:
    """Run this file as a program to execute an order."""
    own = ("PATH", "SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
    environment = {name: os.environ[name] for name in own if name in os.environ}
    done = subprocess.run(  # noqa: S603  # this interpreter
        # Without site folders, whose .pth files must not run here.
        [sys.executable, "-B", "-s", "-S", "-X", "utf8", __file__],
        input=json.dumps(order).encode(),
        capture_output=True,
        env={**environment, "PYTHONHASHSEED": "0"},
        check=False,
    )
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        stderr_lines = done.stderr.decode(errors="replace").strip().splitlines()
        answer = {"error": stderr_lines[-1] if stderr_lines else f"exit code {done.returncode}"}
    if "error" in answer:
        raise BuildError(answer["error"])
    return answer


# --- the program -----------------------------------------------------------------------------


def main() -> None:
    """Read an order from stdin, create the archive, and write the result to stdout."""
    order = json.load(sys.stdin)
    try:
        answer = _make(order["path"], order["level"], order["files"])
    except OSError as error:
        name = f" ({error.filename})" if error.filename else ""
        answer = {"error": f"{error.strerror or error}{name}"}
    json.dump(answer, sys.stdout)


def _make(path: str, level: int, files: list[tuple[str, str, str, bool]]) -> dict[str, Any]:
    unpacked = 0
    compiled: list[tuple[str, bytes]] = []
    with zipfile.ZipFile(path, "w", strict_timestamps=True) as archive:
        for name, source, content, is_executable in files:
            if source:
                size = _add(archive, level, name, source, is_executable=is_executable)
            else:
                size = _write(archive, level, name, base64.b64decode(content), is_executable)
            unpacked += size
            if name.endswith(".py") and not _TESTS.intersection(name.split("/")[:-1]):
                text = Path(source).read_bytes() if source else base64.b64decode(content)
                if code := _compile(text, name):
                    compiled.append((_compiled_name(name), code))
        for name, code in compiled:
            unpacked += _write(archive, level, name, code)
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while piece := file.read(_STEP_BYTES):
            digest.update(piece)
        size = file.tell()
    return {"sha256": digest.hexdigest(), "size": size, "unpacked_bytes": unpacked}


def _add(
    archive: zipfile.ZipFile, level: int, name: str, source: str, *, is_executable: bool
) -> int:
    """Copy a file into an archive; return its size."""
    with Path(source).open("rb") as file:
        info = _info(name, level, is_executable=is_executable)
        info.file_size = size = os.fstat(file.fileno()).st_size  # for the header
        with archive.open(info, "w") as entry:
            shutil.copyfileobj(file, entry, _STEP_BYTES)
    return size


def _write(
    archive: zipfile.ZipFile, level: int, name: str, content: bytes, is_executable: bool = False
) -> int:
    archive.writestr(
        _info(name, level, is_executable=is_executable), content, zipfile.ZIP_DEFLATED, level
    )
    return len(content)


def _info(name: str, level: int, *, is_executable: bool) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _TIME)
    info.create_system = _UNIX
    info.external_attr = (_REGULAR | (0o755 if is_executable else 0o644)) << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    # For an entry that is written in pieces, there is no public way to set the level; the default
    # is 6.
    info._compresslevel = level  # type: ignore[attr-defined]
    return info


def _compile(source: bytes, name: str) -> bytes:
    """Return the compiled file of a source; empty if Python cannot compile it.

    https://docs.python.org/3/reference/import.html#cached-bytecode-invalidation
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = compile(source, name, "exec", dont_inherit=True, optimize=0)
        body = marshal.dumps(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # a template, or Python 2
        return b""
    return b"".join(
        (
            importlib.util.MAGIC_NUMBER,
            _UNCHECKED_HASH.to_bytes(4, "little"),
            importlib.util.source_hash(source),
            body,
        )
    )


def _compiled_name(name: str) -> str:
    folder, base = posixpath.split(name)
    tag = sys.implementation.cache_tag
    return posixpath.join(folder, "__pycache__", f"{base.removesuffix('.py')}.{tag}.pyc")


if __name__ == "__main__":
    main()
