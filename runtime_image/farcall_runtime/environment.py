"""Packages of a task: fetched, verified and unpacked before the function is read.

The bundle's index names a *manifest* by its digest, and the manifest names the archive of each
distribution by its own digest. So the packages are the submitted ones, even if other users write
to the bucket. Each archive is on this disk and compared with its digest before it is opened.
Two processes unpack (`farcall_runtime.unpacking`) while this one fetches, the largest first.

All archives are merged into one folder with the layout of a virtual environment: shared libraries
of one distribution are found from another at their relative paths, namespace packages are one
folder, and data is where `sys.prefix` points. If two distributions contain the same file, the
distribution whose name comes later wins, as if they had been installed in this order.

The folder is private (0700), and is deleted when the task ends.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from farcall_runtime import activation, memory, unpacking
from farcall_runtime.bundle import RefusedError
from farcall_runtime.container_output import log
from farcall_runtime.contract import ExitCode, Location, is_digest
from farcall_runtime.envelope import Buffer, IntegrityError, Reference, VersionMismatchError
from farcall_runtime.storage import (
    NotFoundError,
    Storage,
    StorageError,
    TooShortError,
    UnfitError,
    until_intact,
)

_FORMAT = "zip"
_ARCHITECTURES = {"aarch64": "arm64"}
_WORKERS = 2
_POLL_S = 0.1
_REPORT_S = 10.0
_FILE_SYSTEM_SHARE = 0.05
"""Extra space of files for partial blocks, as a share of their bytes."""


class Distribution(NamedTuple):
    """Distribution in a manifest.

    Attributes:
        name: Its name, as spelled in its metadata.
        version: Its version.
        sha256: Digest of its archive, hexadecimal.
        size: Size of the archive in bytes.
        unpacked: Size of its files in bytes.
    """

    name: str
    version: str
    sha256: str
    size: int
    unpacked: int

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


class _StoppedError(Exception):
    """The task must stop."""


class _NoRoomError(Exception):
    """The disk is full."""


def prepare(
    where: Location,
    storage: Storage,
    wanted: Reference,
    *,
    is_stopped: Callable[[], bool],
) -> Path:
    """Fetch and unpack a task's packages.

    Args:
        where: Location of the bundle, next to whose run the packages are stored.
        storage: The bucket.
        wanted: The manifest's reference from the bundle's index.
        is_stopped: Returns whether the task must stop. It is called repeatedly.

    Returns:
        A folder with the layout of a virtual environment, for `remove` to delete.

    Raises:
        RefusedError: A package is missing, was changed, is for another Python or architecture,
            does not fit on the disk, or cannot be fetched; or the task must stop.
    """
    home: Path | None = None
    try:
        manifest = fetch_manifest(where, storage, wanted)
        manifest.check_platform()
        distributions = manifest.distributions
        home = _make_home(distributions)
        began = time.monotonic()
        prefix = _Maker(home, where, storage, is_stopped).make(distributions)
    except BaseException as error:
        if home is not None:
            remove(home / "environment")
        code = _code_of(error)
        if code is None:
            raise
        raise RefusedError(code, str(error)) from error
    if (took_s := time.monotonic() - began) > _REPORT_S:
        log(f"{len(distributions)} packages are ready after {took_s:.0f} s")
    return prefix


def remove(prefix: Path) -> None:
    """Delete what `prepare` created."""
    shutil.rmtree(prefix.parent, ignore_errors=True)


def _code_of(error: BaseException) -> ExitCode | None:
    """Return the exit code for an error while preparing packages; None if unknown."""
    codes: tuple[tuple[type[BaseException], ExitCode], ...] = (
        (NotFoundError, ExitCode.PACKAGES_MISSING),
        (VersionMismatchError, ExitCode.VERSION_MISMATCH),
        (IntegrityError, ExitCode.INTEGRITY),
        (TooShortError, ExitCode.INTEGRITY),
        (UnfitError, ExitCode.STORE_UNFIT),
        (StorageError, ExitCode.STORAGE_UNREACHABLE),
        (_NoRoomError, ExitCode.DISK_FULL),
        (MemoryError, ExitCode.OUT_OF_MEMORY),
        (_StoppedError, ExitCode.TERMINATED),
        (OSError, ExitCode.SUPERVISOR_FAILED),
    )
    return next((code for kind, code in codes if isinstance(error, kind)), None)


# --- the manifest -----------------------------------------------------------------------------


class Manifest(NamedTuple):
    """Distributions of an environment.

    Attributes:
        python: Their Python version, such as ``"3.11"``.
        architecture: Their machine architecture, such as ``"x86_64"``.
        distributions: Sorted by name.
    """

    python: str
    architecture: str
    distributions: list[Distribution]

    def check_platform(self) -> None:
        """Reject packages that could not be imported here.

        Raises:
            VersionMismatchError: The packages are for another Python or another machine.
        """
        ours = ".".join(map(str, sys.version_info[:2]))
        if self.python != ours:
            raise VersionMismatchError(
                f"the packages are for Python {self.python}, but this image runs Python {ours}; "
                f"build the image on Python {self.python}, or run the workflow on Python {ours}"
            )
        ours = os.uname().machine
        ours = _ARCHITECTURES.get(ours, ours)
        if self.architecture != ours:
            raise VersionMismatchError(
                f"the packages are for {self.architecture}, but this machine is {ours}; set "
                f"architecture to {ours}, or run jobs on {self.architecture} machines"
            )
        if sys.platform != "linux":
            raise VersionMismatchError(
                f"the packages are for Linux, but this is {sys.platform}, where `farcall local` "
                "runs jobs as processes; do not set packages there"
            )

    def differences(self) -> list[str]:
        """Describe each distribution that differs or is missing in this Python."""
        import importlib.metadata

        texts = []
        for each in self.distributions:
            try:
                here = importlib.metadata.version(each.name)
            except importlib.metadata.PackageNotFoundError:
                here = "none"
            if here != each.version:
                texts.append(f"{each.name} {each.version}, here {here}")
        return texts


def fetch_manifest(where: Location, storage: Storage, wanted: Reference) -> Manifest:
    """Fetch a manifest and compare it with its digest.

    Raises:
        IntegrityError: Its bytes do not match its digest, or cannot be parsed.
        VersionMismatchError: This runtime does not know its format.
        StorageError: It does not exist, or S3 cannot be reached.
    """
    key = where.package_key(wanted.sha256.hex())

    def read() -> bytes:
        data = storage.read(key, 0, wanted.size)
        if hashlib.sha256(data).digest() != wanted.sha256:
            raise IntegrityError(f"the content of {key} does not match its name")
        return data

    return read_manifest(until_intact(read))


def read_manifest(data: bytes) -> Manifest:
    """Parse a verified manifest.

    Raises:
        IntegrityError: It cannot be parsed.
        VersionMismatchError: This runtime does not know its format.
    """
    try:
        document = json.loads(data)
        kind = str(document["format"])
        rows = [Distribution(*each) for each in document["distributions"]]
        manifest = Manifest(str(document["python"]), str(document["architecture"]), rows)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise IntegrityError("the list of packages is not readable") from error
    if kind != _FORMAT:
        raise VersionMismatchError(
            f"the packages are packed as {kind!r}, which this image's farcall does not support; "
            "use the same farcall version there and where the workflow runs"
        )
    for each in rows:
        if not (is_digest(str(each.sha256)) and _is_count(each.size) and _is_count(each.unpacked)):
            raise IntegrityError(f"the list of packages does not describe {each}")
    return manifest


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value >= 0


# --- the folder -------------------------------------------------------------------------------


def _make_home(distributions: Sequence[Distribution]) -> Path:
    """Create a private folder, if the disk has enough room."""
    try:
        home = Path(tempfile.mkdtemp(prefix="farcall-environment-")).resolve()
    except OSError as error:
        raise _NoRoomError(
            f"no temporary folder is writable: {error}; a job with a read-only root needs a "
            "volume, and TMPDIR set to it"
        ) from error
    needed = sum(each.size + each.unpacked for each in distributions)
    needed += int(_FILE_SYSTEM_SHARE * needed)
    free = shutil.disk_usage(home).free
    if needed > free:
        remove(home / "environment")
        raise _NoRoomError(_no_room(home, needed, free))
    if os.statvfs(home).f_flag & os.ST_NOEXEC:
        log(f"{home.parent} is mounted noexec: compiled packages cannot be imported from there")
    return home


def _no_room(home: Path, needed: int, free: int) -> str:
    return (
        f"the packages need {_in_megabytes(needed)} in {home.parent}, but "
        f"{_in_megabytes(free)} are free"
    )


def _in_megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


class _Maker:
    """Builder of one environment."""

    def __init__(
        self,
        home: Path,
        where: Location,
        storage: Storage,
        is_stopped: Callable[[], bool],
    ) -> None:
        self._home = home
        self._prefix = home / "environment"
        self._where = where
        self._storage = storage
        self._is_stopped = is_stopped

    def make(self, distributions: Sequence[Distribution]) -> Path:
        """Fetch, unpack and merge distributions; return the folder."""
        self._needed = sum(each.size + each.unpacked for each in distributions)
        archives, unpacked, merged = (
            self._home / name for name in ("archives", "unpacked", "merged")
        )
        try:
            for folder in (archives, unpacked, merged):
                folder.mkdir()
            workers = _Workers(min(_WORKERS, len(distributions)), self._check_stopped)
            with contextlib.closing(workers):
                # Fetch the largest first, but keep the manifest's numbers, because the merge
                # follows them.
                order = sorted(
                    range(len(distributions)), key=lambda at: -distributions[at].unpacked
                )
                for number in self._fetch(distributions, order, archives):
                    folder = unpacked / str(number)
                    folder.mkdir()
                    workers.unpack(distributions[number], archives / str(number), folder)
                workers.finish()
            for number in range(len(distributions)):
                _merge(str(unpacked / str(number)), str(merged))
                self._check_stopped()
            _complete(merged)
            merged.rename(self._prefix)
            for folder in (archives, unpacked):
                shutil.rmtree(folder, ignore_errors=True)
        except OSError as error:
            if error.errno not in unpacking.NO_ROOM:
                raise
            raise _NoRoomError(self._full()) from error
        except _FullError as error:
            raise _NoRoomError(self._full()) from error
        return self._prefix

    def _full(self) -> str:
        free = shutil.disk_usage(self._home).free
        return f"{_no_room(self._home, self._needed, free)}: the disk became full"

    def _check_stopped(self) -> None:
        if self._is_stopped():
            raise _StoppedError("the task was stopped while its packages were downloaded")

    def _fetch(
        self, distributions: Sequence[Distribution], order: Sequence[int], folder: Path
    ) -> Iterator[int]:
        """Store verified archives on this disk; yield each number when it is complete."""
        keys = [self._where.package_key(distributions[number].sha256) for number in order]
        sizes = [distributions[number].size for number in order]
        progress = _Progress(sum(sizes))
        ranges = [(key, 0, size) for key, size in zip(keys, sizes, strict=True)]
        with contextlib.closing(self._storage.stream_all(ranges)) as pieces:
            for at, group in itertools.groupby(pieces, key=lambda piece: piece[0]):
                number, wanted = order[at], distributions[order[at]]
                path = folder / str(number)
                if self._save((piece for _, piece in group), path, progress) != wanted.sha256:
                    until_intact(functools.partial(self._save_again, keys[at], wanted, path))
                yield number

    def _save(self, pieces: Iterator[Buffer], path: Path, progress: _Progress) -> str:
        """Write a file; return its SHA-256."""
        digest = hashlib.sha256()
        with path.open("wb") as file:
            for piece in pieces:
                self._check_stopped()
                digest.update(piece)
                file.write(piece)
                progress.add(len(piece))
        return digest.hexdigest()

    def _save_again(self, key: str, wanted: Distribution, path: Path) -> None:
        pieces = self._storage.stream(key, 0, wanted.size)
        if self._save(pieces, path, _Progress(wanted.size)) != wanted.sha256:
            raise IntegrityError(f"the content of {key} ({wanted}) does not match its name")


class _Progress:
    """Log messages of a download that takes long."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._fetched, self._reported_at = 0, time.monotonic()

    def add(self, size: int) -> None:
        """Count bytes that have arrived."""
        self._fetched += size
        if time.monotonic() - self._reported_at > _REPORT_S:
            self._reported_at = time.monotonic()
            there, total = _in_megabytes(self._fetched), _in_megabytes(self._total)
            log(f"downloading packages: {there} of {total}")


class _FullError(Exception):
    """A worker ran out of disk space."""


class _Workers:
    """Unpacking processes.

    Args:
        count: Number of processes.
        check_stopped: Called repeatedly while waiting; raises to stop.
    """

    def __init__(self, count: int, check_stopped: Callable[[], None]) -> None:
        self._check_stopped = check_stopped
        self._oom_kills = memory.oom_kills()
        self._processes = [_start() for _ in range(count)]
        self._loads = [0] * count

    def close(self) -> None:
        """Kill the remaining processes."""
        for each in self._processes:
            each.kill()  # no effect on a process that has exited
            each.wait()
            for pipe in (each.stdin, each.stdout):
                with contextlib.suppress(OSError):  # an order that was never read
                    if pipe is not None:
                        pipe.close()

    def unpack(self, wanted: Distribution, archive: Path, folder: Path) -> None:
        """Assign an archive to the least loaded process."""
        self._check_workers()
        number = self._loads.index(min(self._loads))
        self._loads[number] += wanted.unpacked
        home = archive.parents[1]
        order = {
            "name": str(wanted),
            "archive": str(archive),
            "folder": str(folder),
            "bytes": wanted.unpacked,
            "interpreter": str(home / "environment" / "bin" / "python3"),
        }
        stdin = self._processes[number].stdin
        try:
            if stdin is not None:
                stdin.write(json.dumps(order).encode() + b"\n")
                stdin.flush()
        except BrokenPipeError:
            self._judge(self._processes[number])

    def finish(self) -> None:
        """Wait until all archives are unpacked."""
        for each in self._processes:
            if each.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    each.stdin.close()
        for each in self._processes:
            while True:
                self._check_stopped()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    each.wait(_POLL_S)
                    break
            self._judge(each)

    def _check_workers(self) -> None:
        for each in self._processes:
            if each.poll() is not None:
                self._judge(each)

    def _judge(self, process: subprocess.Popen[bytes]) -> None:
        """Raise if a worker has not completed all its orders."""
        if process.wait() == 0:
            return
        output = process.stdout.read() if process.stdout is not None else b""
        try:
            failure = json.loads(output)
        except ValueError:
            failure = {}
        match failure:
            case {"kind": unpacking.REFUSED, "name": name, "text": text}:
                raise IntegrityError(f"the archive of {name} is invalid: {text}")
            case {"kind": unpacking.FULL}:
                raise _FullError
            case {"name": name, "text": text}:
                raise OSError(f"the archive of {name} could not be unpacked: {text}")
        if memory.oom_kills() > self._oom_kills:
            raise MemoryError("a process that unpacks packages ran out of memory")
        code = process.returncode
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        raise OSError(f"a process that unpacks packages failed with {how}")


def _start() -> subprocess.Popen[bytes]:
    # The worker uses only the standard library, and no environment variables.
    command = [sys.executable, "-I", "-S", "-X", "utf8", unpacking.__file__]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603


def _merge(source: str, target: str) -> None:
    """Move a folder's contents to another folder, replacing existing files."""
    with os.scandir(source) as entries:
        for entry in entries:
            goal = f"{target}/{entry.name}"
            if not entry.is_dir(follow_symlinks=False):
                _move(entry.path, goal)
                continue
            try:
                os.rename(entry.path, goal)  # noqa: PTH104  # at once, if it is the first
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise IntegrityError(_conflict(goal)) from error
                _merge(entry.path, goal)


def _move(source: str, goal: str) -> None:
    try:
        os.replace(source, goal)  # noqa: PTH105
    except IsADirectoryError as error:
        raise IntegrityError(_conflict(goal)) from error


def _conflict(path: str) -> str:
    return f"two packages conflict: one has a file where the other one has a folder ({path})"


def _complete(folder: Path) -> None:
    """Add the files that make a folder a virtual environment.

    Source:
        https://docs.python.org/3/library/site.html
    """
    base = Path(getattr(sys, "_base_executable", "") or sys.executable)
    version = ".".join(map(str, sys.version_info[:3]))
    (folder / "pyvenv.cfg").write_text(
        f"home = {base.parent}\ninclude-system-site-packages = false\nversion = {version}\n"
    )
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for name in ("python3", "python", f"python{sys.version_info.major}.{sys.version_info.minor}"):
        (programs / name).unlink(missing_ok=True)
        (programs / name).symlink_to(base)
    packages = Path(activation.site_packages(str(folder)))
    packages.mkdir(parents=True, exist_ok=True)
    # These paths come last: the runtime and the image's packages rank below the task's packages.
    below = [path for path in activation.below(sys.path) if path and Path(path).is_dir()]
    (packages / "zzz-farcall-below.pth").write_text("".join(f"{path}\n" for path in below))
