"""The packages of a task: sending them, and a container's start with them; a part of the page."""

from __future__ import annotations

import contextlib
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import farcall.local
from benchmarks import report
from benchmarks.report import Row
from benchmarks.stage import ROOT, Stage, environment

TITLE = "What packages of a task cost"

WANTED = (
    *("numpy", "pandas", "scikit-learn", "pyarrow", "matplotlib", "requests", "dask[complete]"),
    *("sqlalchemy", "networkx", "tqdm", "jupyter-client"),
)
"""With what they need, and what farcall's client does, they are more than 60 distributions."""

_CHANGED, _VERSIONS = "tqdm", ("4.66.5", "4.67.1")
_SHARE = 1 / 5
_MORE_S = 0.3

_METHOD = f"""\
uv installed what `WANTED` lists (numpy, pandas, scikit-learn, pyarrow, dask and others) and what
farcall's client needs in a fresh virtual environment. A client in it has them travel by
`packages="local"`, on `farcall local`, the embedded AWS, whose S3 is a Python process of this
machine. The container is the real runtime, a process of another environment, which has none of
them. Its start is the time from the start of that process to the call of the function: fetching,
verifying, unpacking and merging included.

**pip:** `python -m venv`, not timed, then `pip install --no-index --no-deps --find-links WHEELS`
with the same versions, from wheels on this disk: nothing is resolved, and nothing is fetched. pip
compiles what it installs, as jobs with `packages` have it compiled; `--no-compile` leaves that to
the first import of each container.

**Floor:** the same archives, already on this disk, unpacked by `zipfile` in two processes, the
largest first, and deleted; measured in turns with the starts.

**Submitting:** `submit` of a fresh process, with all packages in the bucket, in turns with the
same without packages; medians. **One changed package:** {_CHANGED} was installed in another
version, and counted what the next submission stored: its archive, and the manifest that names it
among the others.

Other programs share the machine, its disk included; shares are the figures to look at."""


@dataclass(frozen=True)
class Took:
    """What something took.

    Attributes:
        wall_s: Seconds.
        cpu_s: Of its processes.
    """

    wall_s: float
    cpu_s: float


def _timed(call: Callable[[], object]) -> Took:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    call()
    wall_s = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Took(wall_s, cpu_s)


def _uv(*arguments: str) -> None:
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([str(uv) if uv.exists() else "uv", *arguments, "--quiet"], check=True)


def _pins(python: str) -> list[str]:
    """Return what is installed, as a requirements file names it."""
    code = (
        "import importlib.metadata as m, json; "
        "print(json.dumps(sorted({f'{d.name}=={d.version}' for d in m.distributions()})))"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    pins: list[str] = json.loads(done.stdout)
    return pins


class _Bucket:
    """What lies in the embedded AWS's bucket."""

    def __init__(self, aws: farcall.local.LocalAWS) -> None:
        import boto3

        self._name = aws.environment["FARCALL_S3_BUCKET_NAME"]
        self._s3 = boto3.client(
            "s3",
            endpoint_url=aws.endpoint_url,
            region_name="us-east-1",
            aws_access_key_id=aws.environment["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=aws.environment["AWS_SECRET_ACCESS_KEY"],
        )

    def packages(self) -> dict[str, int]:
        """Return the sizes of packages and manifests, by their keys."""
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=self._name)
        every = (each for page in pages for each in page.get("Contents", ()))
        return {each["Key"]: each["Size"] for each in every if "/packages/" in each["Key"]}

    def fetch(self, keys: list[str], folder: Path) -> list[Path]:
        """Store objects in a folder; return their paths."""
        for key in keys:
            self._s3.download_file(self._name, key, str(folder / Path(key).name))
        return [folder / Path(key).name for key in keys]


def _unpack(archive: str, folder: str) -> None:
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(folder)


def _floor(archives: list[Path], folder: Path) -> None:
    archives = sorted(archives, key=lambda path: -path.stat().st_size)
    with ProcessPoolExecutor(2) as processes:
        for each in [processes.submit(_unpack, str(path), str(folder)) for path in archives]:
            each.result()
    shutil.rmtree(folder)


@contextlib.contextmanager
def _venv(folder: Path) -> Iterator[str]:
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    yield str(folder / "bin" / "python")
    shutil.rmtree(folder)


def _install(python: str, wheels: Path, pins: Path, *options: str) -> None:
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-index", "--no-deps", "--find-links", str(wheels), "-r", str(pins), *options]
    subprocess.run(command, check=True)


def part(say: Callable[[str], object], turns: int, *, options: str) -> report.Part:
    """Measure, and return the part of the page."""
    with tempfile.TemporaryDirectory(prefix="farcall-environment-") as outer:
        return _part(say, Path(outer), turns, options)


def _part(say: Callable[[str], object], folder: Path, turns: int, options: str) -> report.Part:
    workflow = folder / "workflow"
    python = str(workflow / "bin" / "python")
    say(f"installing {len(WANTED)} packages and what they need ...")
    _uv("venv", "--python", sys.executable, str(workflow))
    changed = f"{_CHANGED}=={_VERSIONS[0]}"
    _uv("pip", "install", "--python", python, *WANTED, changed, "-r", str(ROOT / "pyproject.toml"))
    with farcall.local.start() as aws:
        place = {**environment(""), **aws.environment, "HOME": str(folder)}
        place["XDG_CACHE_HOME"] = str(folder / "cache")
        place["TMPDIR"] = str(folder)
        client, bucket = Stage("", place), _Bucket(aws)

        def run(what: str) -> dict[str, Any]:
            return client.run("-m", "benchmarks.environment_client", what, python=python)

        say("the first submission, which packs and uploads (minutes) ...")
        first = run("submit")
        stored = bucket.packages()
        say(f"{turns} starts with packages, and {turns} submissions with and without ...")
        archives = bucket.fetch([*stored], _folder(folder / "archives"))
        archives = [path for path in archives if zipfile.is_zipfile(path)]
        starts, floors, with_packages, without = [], [], [], []
        for _ in range(turns):
            starts.append(run("run"))
            floors.append(_timed(lambda: _floor(archives, folder / "floor")))
            with_packages.append(run("submit")["submit_s"])
            without.append(run("none")["submit_s"])
        pins = [pin for pin in _pins(python) if not pin.startswith(("pip=", "setuptools="))]
        _uv("pip", "install", "--python", python, f"{_CHANGED}=={_VERSIONS[1]}")
        run("submit")
        sent = bucket.packages().keys() - stored.keys()
    more = len(sent) - 1  # the manifest is one of them
    say("the same by pip, from local wheels (minutes) ...")
    listed = folder / "pins.txt"
    listed.write_text("\n".join(pins))
    wheels = _folder(folder / "wheels")
    with _venv(folder / "pip") as other:
        command = [other, "-m", "pip", "download", "--quiet", "--no-deps", "-r", str(listed)]
        subprocess.run([*command, "-d", str(wheels)], check=True)
        version = subprocess.run([other, "-m", "pip", "--version"], capture_output=True, text=True)
        pip = _timed(lambda: _install(other, wheels, listed))
    with _venv(folder / "pip") as other:
        quick = _timed(lambda: _install(other, wheels, listed, "--no-compile"))

    ready_s = statistics.median(each["ready_s"] for each in starts)
    cpu_s = statistics.median(each["cpu_s"] for each in starts)
    import_s = statistics.median(each["import_s"] for each in starts)
    floor_s = statistics.median(each.wall_s for each in floors)
    floor_cpu_s = statistics.median(each.cpu_s for each in floors)
    extra_s = statistics.median(with_packages) - statistics.median(without)
    named = f"{len(archives)} distributions"
    rows = [
        Row(f"container ready with {named}: share of pip's time", _SHARE, ready_s / pip.wall_s),
        Row("objects sent after one package changed, beside the manifest", 1, more),
        Row("a later submission with packages: more than without", _MORE_S, extra_s, "s"),
    ]
    headings = ("what", "wall s", "CPU s")
    lines = [
        (f"container's start with {named}", f"{ready_s:.1f}", f"{cpu_s:.1f}"),
        ("floor: the archives unpacked and deleted", f"{floor_s:.1f}", f"{floor_cpu_s:.1f}"),
        (f"`pip install` ({_word(version.stdout)})", f"{pip.wall_s:.1f}", f"{pip.cpu_s:.1f}"),
        ("the same with `--no-compile`", f"{quick.wall_s:.1f}", f"{quick.cpu_s:.1f}"),
        ("first imports in the container", f"{import_s:.1f}", ""),
        ("the first submission, packing and upload", f"{first['submit_s']:.1f}", ""),
        ("a later one", f"{statistics.median(with_packages):.2f}", ""),
        ("one without packages", f"{statistics.median(without):.2f}", ""),
    ]
    size = sum(path.stat().st_size for path in archives) / 1e6
    each_s = ", ".join(f"{each['ready_s']:.1f}" for each in starts)
    about = (
        f"{len(archives)} archives of {size:,.0f} MB travelled; the starts took {each_s} s each."
    )
    pieces = [report.table(headings, lines), about, "## How the packages were measured", _METHOD]
    return report.part(TITLE, rows, pieces, options=options, tables=[(TITLE, headings, lines)])


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def _word(said: str) -> str:
    return " ".join(said.split()[:2])
