"""Program that unpacks packages in a separate process: ``python unpacking.py``.

It uses only the standard library. It reads orders from stdin, one JSON document per line, and
exits at the first order that fails. Threads would gain hardly anything, because with many small
files most of the time is spent in the interpreter. A fork of the supervisor, which has threads by
then, could wait forever for a lock.

The caller has verified the archive. This program still checks that no name leads out of the
folder, and that the files are not larger than announced.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import sys
import zipfile
import zlib
from collections.abc import Iterator

REFUSED, FULL, FAILED = "refused", "full", "failed"
"""Why an order failed; see `describe`."""

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
_ENCRYPTED = 1
_STEP_BYTES = 1024 * 1024
_LONGEST_SHEBANG = 127
"""The kernel's limit, with the first two characters:
https://man7.org/linux/man-pages/man2/execve.2.html
"""

_SCRIPT_GROUPS = ("console_scripts", "gui_scripts")
_ENTRY = re.compile(r"\s*([\w.]+)\s*:\s*([\w.]+)\s*(?:\[[^\]]*\])?\s*", re.ASCII)
_SCRIPT = """\
import sys
from {module} import {first}

sys.exit({attribute}())
"""
# A line that both a shell and Python can read: the shell starts Python with this file.
_BY_SHELL = "#!/bin/sh\n'''exec' \"{interpreter}\" \"$0\" \"$@\"\n' '''\n"


class UnfitArchiveError(Exception):
    """The archive was not created by a farcall client."""


def unpack(archive: str, folder: str, most_bytes: int, interpreter: str) -> None:
    """Unpack an archive, and make its scripts executable.

    Args:
        archive: Path of the zip file.
        folder: Path of an empty folder.
        most_bytes: Maximum total size of the unpacked files in bytes.
        interpreter: Path of the Python for the scripts.

    Raises:
        UnfitArchiveError: It contains a name that leads out of the folder or occurs twice, a link,
            or more bytes; or it is not a zip file.
        OSError: A file could not be written.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            infos = opened.infolist()
            _check(infos, most_bytes)
            made: set[str] = set()
            for info in infos:
                parent, _, _ = info.filename.rpartition("/")
                if parent not in made:
                    os.makedirs(os.path.join(folder, parent), exist_ok=True)  # noqa: PTH103, PTH118
                    made.add(parent)
                _write(opened, info, folder, interpreter)
    except (FileExistsError, NotADirectoryError) as error:
        raise UnfitArchiveError(f"it has a duplicate name ({error.filename})") from error
    # zipfile raises these for bytes that are truncated, changed, or of a later format version.
    except (zipfile.BadZipFile, zlib.error, ValueError, NotImplementedError, EOFError) as error:
        raise UnfitArchiveError(f"it cannot be read ({error})") from error
    _make_entry_points(folder, made, interpreter)


def _check(infos: list[zipfile.ZipInfo], most_bytes: int) -> None:
    """Reject, before anything is written, archives that no client creates."""
    for info in infos:
        name = info.filename
        if not _is_inside(name) or info.orig_filename != name:
            raise UnfitArchiveError(f"{name!r} is outside its folder, or is not a valid file name")
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG):
            raise UnfitArchiveError(f"{name!r} is not a file, but a link, a folder or a device")
        if info.flag_bits & _ENCRYPTED or info.compress_type not in _METHODS:
            raise UnfitArchiveError(f"{name!r} has an unsupported compression or is encrypted")
    if sum(info.file_size for info in infos) > most_bytes:
        raise UnfitArchiveError("its files are larger than the list of packages says")


def _is_inside(name: str) -> bool:
    """Return whether a name is a plain path below a folder."""
    odd = {"", ".", ".."}.intersection(name.split("/"))
    return not odd and "\\" not in name and name.isprintable()


def _write(archive: zipfile.ZipFile, info: zipfile.ZipInfo, folder: str, interpreter: str) -> None:
    """Write a file; zipfile limits its size and verifies its checksum."""
    mode = 0o755 if info.external_attr >> 16 & stat.S_IXUSR else 0o644
    path = os.path.join(folder, info.filename)  # noqa: PTH118  # for speed
    with archive.open(info) as source, _create(path, mode) as target:
        if info.filename.startswith("bin/"):
            first = source.readline()
            if first.startswith(b"#!") and b"python" in first:
                first = shebang(interpreter).encode()
            target.write(first)
        shutil.copyfileobj(source, target, _STEP_BYTES)


def _create(path: str, mode: int):  # type: ignore[no-untyped-def]  # noqa: ANN202  # io's own class
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return open(os.open(path, flags, mode), "wb")  # noqa: PTH123


def shebang(interpreter: str) -> str:
    """Return the first line of a script for an interpreter."""
    plain = f"#!{interpreter}\n"
    if len(plain) <= _LONGEST_SHEBANG and " " not in interpreter:
        return plain
    return _BY_SHELL.format(interpreter=interpreter)


def _make_entry_points(folder: str, made: set[str], interpreter: str) -> None:
    """Create the scripts that the distribution's metadata defines."""
    for each in sorted(made):
        if not each.endswith(".dist-info"):
            continue
        path = os.path.join(folder, each, "entry_points.txt")  # noqa: PTH118
        if not os.path.isfile(path):  # noqa: PTH113
            continue
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            for name, text in entry_points(file.read()):
                _make_script(folder, name, shebang(interpreter) + text)


def _make_script(folder: str, name: str, text: str) -> None:
    home = os.path.join(folder, "bin")  # noqa: PTH118
    os.makedirs(home, exist_ok=True)  # noqa: PTH103
    path = os.path.join(home, name)  # noqa: PTH118
    if os.path.lexists(path):  # the client's copy of it
        os.unlink(path)  # noqa: PTH108
    with _create(path, 0o755) as file:
        file.write(text.encode())


def entry_points(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and content, without the first line, of the scripts in entry points.

    Invalid file names and invalid object references are skipped.

    Source:
        https://packaging.python.org/en/latest/specifications/entry-points/
    """
    import configparser

    parser = configparser.ConfigParser(delimiters=("=",), strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment]  # names are case-sensitive
    try:
        parser.read_string(text)
    except configparser.Error:
        return
    for group in _SCRIPT_GROUPS:
        for name, value in parser[group].items() if parser.has_section(group) else ():
            match = _ENTRY.fullmatch(value)
            if match is None or not _is_inside(name) or "/" in name:
                continue
            module, attribute = match.groups()
            first = attribute.partition(".")[0]
            yield name, _SCRIPT.format(module=module, attribute=attribute, first=first)


def describe(error: Exception) -> tuple[str, str]:
    """Return the error's kind (`REFUSED`, `FULL` or `FAILED`) and its text."""
    if isinstance(error, UnfitArchiveError):
        return REFUSED, str(error)
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return FULL, os.strerror(error.errno)
    return FAILED, f"{type(error).__name__}: {error}"


def main() -> int:
    """Execute orders from stdin; if one fails, write why to stdout and return 1."""
    os.umask(0o022)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            unpack(order["archive"], order["folder"], order["bytes"], order["interpreter"])
            os.unlink(order["archive"])  # noqa: PTH108
        except Exception as error:
            kind, text = describe(error)
            json.dump({"kind": kind, "text": text, "name": order["name"]}, sys.stdout)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
