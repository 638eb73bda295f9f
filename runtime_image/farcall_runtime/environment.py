"""Packages of a task in its container: fetched, verified, unpacked, before the function is read.

The bundle's index names a *manifest* by its digest, and that names an archive of each
distribution by its own. So what runs is what was submitted, whoever else writes to the bucket.
Each archive is on this disk, and compared with its digest, before anything opens it. Two
processes unpack (`farcall_runtime.unpacking`) while this one fetches, the largest first.

All is merged into one folder that is shaped like a virtual environment: shared libraries of one
distribution are found from another by their relative places, namespace packages are one folder,
and data lies where `sys.prefix` leads. Where two distributions have a file of the same name, the
one stays whose name comes later, as if they had been installed in this order.

The folder is nobody else's (0700), and goes when the task ends.
"""

from __future__ import annotations

import contextlib
import errno
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
from typing import NamedTuple, TypeAlias

from farcall_runtime import activation, memory, unpacking
from farcall_runtime.bundle import RefusedError
from farcall_runtime.contract import ExitCode, Location, is_digest
from farcall_runtime.envelope import IntegrityError, Reference, VersionMismatchError
from farcall_runtime.outlet import say
from farcall_runtime.storage import (
    NotFoundError,
    Storage,
    StorageError,
    TooShortError,
    UnfitError,
)

_FORMAT = "zip"
_ARCHITECTURES = {"aarch64": "arm64"}
_WORKERS = 2
_LOOK_S = 0.1
_TELL_S = 10.0
_FILE_SYSTEM_SHARE = 0.05
"""What files take above their bytes, blocks that are not full, as a share of these."""


class Distribution(NamedTuple):
    """A distribution that a manifest names.

    Attributes:
        name: Its name, as its metadata has it.
        version: Its version.
        sha256: Digest of its archive, hexadecimal.
        size: Bytes of the archive.
        unpacked: Bytes of the files in it.
    """

    name: str
    version: str
    sha256: str
    size: int
    unpacked: int

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


_Numbered: TypeAlias = tuple[int, Distribution]


class _StoppedError(Exception):
    """The task was told to stop."""


class _NoRoomError(Exception):
    """The disk is full."""


def prepare(
    where: Location,
    storage: Storage,
    wanted: Reference,
    *,
    is_stopped: Callable[[], bool],
) -> Path:
    """Bring the packages of a task here.

    Args:
        where: Place of the bundle, beside whose run the packages lie.
        storage: The bucket.
        wanted: The manifest, as the bundle's index names it.
        is_stopped: Tells whether the task is to stop. It is asked again and again.

    Returns:
        A folder shaped like a virtual environment, in one that `remove` is to take away.

    Raises:
        RefusedError: A package is missing or was changed, is for another Python or another
            architecture, has no room here, or does not come; or the task is to stop.
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
    if (took_s := time.monotonic() - began) > _TELL_S:
        say(f"{len(distributions)} packages are ready after {took_s:.0f} s")
    return prefix


def remove(prefix: Path) -> None:
    """Take away what `prepare` has made."""
    shutil.rmtree(prefix.parent, ignore_errors=True)


def _code_of(error: BaseException) -> ExitCode | None:
    """Return what the container ends with where there are no packages for an error's sake."""
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
    """Which distributions an environment has.

    Attributes:
        python: The Python they are for, such as ``"3.11"``.
        architecture: The machines they are for, such as ``"x86_64"``.
        distributions: In the order of their names.
    """

    python: str
    architecture: str
    distributions: list[Distribution]

    def check_platform(self) -> None:
        """Refuse packages that could not be imported here.

        Raises:
            VersionMismatchError: They are for another Python or another machine.
        """
        ours = ".".join(map(str, sys.version_info[:2]))
        if self.python != ours:
            raise VersionMismatchError(
                f"the packages are for Python {self.python} and this image runs Python {ours}; "
                f"build the image on Python {self.python}, or run the workflow on Python {ours}"
            )
        ours = os.uname().machine
        ours = _ARCHITECTURES.get(ours, ours)
        if self.architecture != ours:
            raise VersionMismatchError(
                f"the packages are for {self.architecture} and this machine is {ours}; set "
                f"architecture to {ours}, or have jobs run on {self.architecture} machines"
            )
        if sys.platform != "linux":
            raise VersionMismatchError(
                f"the packages are for Linux and this is {sys.platform}, where `farcall local` "
                "runs jobs as processes; leave packages unset there"
            )

    def differences(self) -> list[str]:
        """Return in a few words each what this Python has in another version, or lacks."""
        import importlib.metadata

        found = []
        for each in self.distributions:
            try:
                here = importlib.metadata.version(each.name)
            except importlib.metadata.PackageNotFoundError:
                here = "none"
            if here != each.version:
                found.append(f"{each.name} {each.version}, here {here}")
        return found


def fetch_manifest(where: Location, storage: Storage, wanted: Reference) -> Manifest:
    """Fetch a manifest, and compare it with its digest.

    Raises:
        IntegrityError: It is not what its name says, or cannot be understood.
        VersionMismatchError: It is of a format that this runtime does not know.
        StorageError: It is not there, or S3 could not be asked.
    """
    key = where.package_key(wanted.sha256.hex())
    data = storage.read(key, 0, wanted.size)
    if hashlib.sha256(data).digest() != wanted.sha256:
        raise IntegrityError(f"{key} is not what its name says")
    return read_manifest(data)


def read_manifest(data: bytes) -> Manifest:
    """Return what a verified manifest says.

    Raises:
        IntegrityError: It cannot be understood.
        VersionMismatchError: It is of a format that this runtime does not know.
    """
    try:
        said = json.loads(data)
        kind = str(said["format"])
        rows = [Distribution(*each) for each in said["distributions"]]
        found = Manifest(str(said["python"]), str(said["architecture"]), rows)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise IntegrityError("the manifest of the packages cannot be understood") from error
    if kind != _FORMAT:
        raise VersionMismatchError(
            f"the packages are packed as {kind!r}, which the farcall of this image does not "
            "know; use the same farcall there and where the workflow runs"
        )
    for each in rows:
        if not (is_digest(str(each.sha256)) and _is_count(each.size) and _is_count(each.unpacked)):
            raise IntegrityError(f"the manifest of the packages does not say what {each} is")
    return found


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value >= 0


# --- the folder -------------------------------------------------------------------------------


def _make_home(distributions: Sequence[Distribution]) -> Path:
    """Make a folder of this container's own, where there is room."""
    try:
        home = Path(tempfile.mkdtemp(prefix="farcall-environment-")).resolve()
    except OSError as error:
        raise _NoRoomError(
            f"there is no temporary folder to write to: {error}; a job with a read-only root "
            "needs a volume, and TMPDIR that names it"
        ) from error
    needed = sum(each.size + each.unpacked for each in distributions)
    needed += int(_FILE_SYSTEM_SHARE * needed)
    free = shutil.disk_usage(home).free
    if needed > free:
        remove(home / "environment")
        raise _NoRoomError(_no_room(home, needed, free))
    if os.statvfs(home).f_flag & os.ST_NOEXEC:
        say(f"{home.parent} is mounted noexec: compiled packages cannot be imported from there")
    return home


def _no_room(home: Path, needed: int, free: int) -> str:
    return (
        f"the packages need {_in_megabytes(needed)} in {home.parent} and "
        f"{_in_megabytes(free)} are free"
    )


def _in_megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


class _Maker:
    """Makes one environment."""

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
        """Fetch and unpack distributions and merge them; return the folder."""
        self._needed = sum(each.size + each.unpacked for each in distributions)
        archives, unpacked, merged = (
            self._home / name for name in ("archives", "unpacked", "merged")
        )
        try:
            for folder in (archives, unpacked, merged):
                folder.mkdir()
            workers = _Workers(min(_WORKERS, len(distributions)), self._look)
            with contextlib.closing(workers):
                # By size, but counted as the manifest has them: the merge goes by that.
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
                self._look()
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
        return f"{_no_room(self._home, self._needed, free)}: there was no room for more"

    def _look(self) -> None:
        if self._is_stopped():
            raise _StoppedError("the task was told to stop while its packages came")

    def _fetch(
        self, distributions: Sequence[Distribution], order: Sequence[int], folder: Path
    ) -> Iterator[int]:
        """Have verified archives on this disk; yield the number of each as it is there."""
        wanted = [(number, distributions[number]) for number in order]
        self._progress = _Progress(sum(each.size for each in distributions))
        yield from self._download(wanted, folder)

    def _download(self, wanted: Sequence[_Numbered], folder: Path) -> Iterator[int]:
        """Fetch archives from the bucket; yield the number of each as it is there."""
        if not wanted:
            return
        ranges = [(self._where.package_key(each.sha256), 0, each.size) for _, each in wanted]
        with contextlib.closing(self._storage.stream_all(ranges)) as pieces:
            for at, group in itertools.groupby(pieces, key=lambda piece: piece[0]):
                number, each = wanted[at]
                digest = hashlib.sha256()
                with (folder / str(number)).open("xb") as file:
                    for _, piece in group:
                        self._look()
                        digest.update(piece)
                        file.write(piece)
                        self._progress.add(len(piece))
                if digest.hexdigest() != each.sha256:
                    raise IntegrityError(f"{ranges[at][0]} ({each}) is not what its name says")
                yield number


class _Progress:
    """Tells, every now and then, how much has come."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._there = 0
        self._told_at = time.monotonic()

    def add(self, size: int) -> None:
        """Note that some bytes have come."""
        self._there += size
        if time.monotonic() - self._told_at > _TELL_S:
            self._told_at = time.monotonic()
            say(
                f"fetching packages: {_in_megabytes(self._there)} of "
                f"{_in_megabytes(self._total)} are here"
            )


class _FullError(Exception):
    """A worker found no room."""


class _Workers:
    """Processes that unpack.

    Args:
        count: How many.
        look: Is called again and again while they are waited for; raises to end that.
    """

    def __init__(self, count: int, look: Callable[[], None]) -> None:
        self._look = look
        self._oom_kills = memory.oom_kills()
        self._processes = [_start() for _ in range(count)]
        self._loads = [0] * count

    def close(self) -> None:
        """End those that have not left."""
        for each in self._processes:
            each.kill()  # nothing where it has left
            each.wait()
            for pipe in (each.stdin, each.stdout):
                with contextlib.suppress(OSError):  # an order that was never taken
                    if pipe is not None:
                        pipe.close()

    def unpack(self, wanted: Distribution, archive: Path, folder: Path) -> None:
        """Have an archive unpacked, by the one who has least to do."""
        self._look_for_failure()
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
        """Wait until all is unpacked."""
        for each in self._processes:
            if each.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    each.stdin.close()
        for each in self._processes:
            while True:
                self._look()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    each.wait(_LOOK_S)
                    break
            self._judge(each)

    def _look_for_failure(self) -> None:
        for each in self._processes:
            if each.poll() is not None:
                self._judge(each)

    def _judge(self, process: subprocess.Popen[bytes]) -> None:
        """Raise where a worker has not done all it was told to."""
        if process.wait() == 0:
            return
        said = process.stdout.read() if process.stdout is not None else b""
        try:
            answer = json.loads(said)
        except ValueError:
            answer = {}
        match answer:
            case {"kind": unpacking.REFUSED, "name": name, "text": text}:
                raise IntegrityError(f"the archive of {name} is not fit to be unpacked: {text}")
            case {"kind": unpacking.FULL}:
                raise _FullError
            case {"name": name, "text": text}:
                raise OSError(f"the archive of {name} could not be unpacked: {text}")
        if memory.oom_kills() > self._oom_kills:
            raise MemoryError("a process that unpacks packages was killed for its memory")
        code = process.returncode
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        raise OSError(f"a process that unpacks packages ended with {how}")


def _start() -> subprocess.Popen[bytes]:
    # Of the standard library alone, and of no environment variable.
    command = [sys.executable, "-I", "-S", "-X", "utf8", unpacking.__file__]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603


def _merge(source: str, target: str) -> None:
    """Move what is in a folder to another one, where it takes the place of what is there."""
    with os.scandir(source) as entries:
        for entry in entries:
            goal = f"{target}/{entry.name}"
            if not entry.is_dir(follow_symlinks=False):
                _move(entry.path, goal)
                continue
            try:
                os.rename(entry.path, goal)  # noqa: PTH104  # whole, where it is the first
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
    return f"of two packages one has a file where the other one has a folder ({path})"


def _complete(folder: Path) -> None:
    """Add what makes a virtual environment of a folder.

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
    # Its lines come last. The runtime, and whatever the image has, is below the task's packages.
    below = [path for path in activation.below(sys.path) if path and Path(path).is_dir()]
    (packages / "zzz-farcall-below.pth").write_text("".join(f"{path}\n" for path in below))
