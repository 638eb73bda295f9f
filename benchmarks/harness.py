"""Harness that starts the cloud and the measured client processes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.cloud import ACCOUNT, CONTROL, REGION
from tests import emulators

ROOT = Path(__file__).resolve().parents[1]
BUCKET = "benchmark"
PEER = "peer"
PREFIX = "farcall-benchmark-"
_PEER_PACKAGES = (
    "covalent-awsbatch-plugin==0.42.0",
    "covalent==0.240.0",
    "fastapi<0.132",
    "numpy",
)


@dataclass(frozen=True)
class Settings:
    """Command-line options: size in bytes, and the peer's Python ("" for none)."""

    tasks: int
    size: int
    repeats: int
    starts: int
    peer: str
    say: Callable[[str], object]


@dataclass(frozen=True)
class Run:
    """Measurements of one client process.

    CPU time covers all threads and includes deletions. The wall time ends with the last result.
    `stall_s` is the longest stall of the event loop. Memory is the resident set size before the
    first call, and its peak since then. Requests are counted by operation, such as "s3 GetObject".
    """

    cpu_s: float
    wall_s: float
    stall_s: float
    before_bytes: int
    peak_bytes: int
    requests: dict[str, int] = field(default_factory=dict)
    result: Any = None

    @property
    def grown_bytes(self) -> int:
        """Growth of the resident set size up to its peak."""
        return self.peak_bytes - self.before_bytes

    def count(self, service: str = "") -> int:
        """Return the number of requests to one service, by default to all services."""
        return sum(n for name, n in self.requests.items() if name.startswith(service))


@dataclass(frozen=True)
class Stage:
    """Running cloud for client processes.

    Attributes:
        environment: Complete environment of a client process.
        emulator: The local AWS emulator; None for the in-memory cloud.
    """

    environment: dict[str, str]
    emulator: emulators.TestAWS | None = None

    def run(self, module: str, *arguments: str, python: str = sys.executable) -> Any:
        """Run a module in a new process, and return the JSON document in its last line."""
        done = subprocess.run(
            [python, "-m", module, *arguments],
            env=self.variables(python),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            check=True,
        )
        return json.loads(done.stdout.splitlines()[-1])

    def measure(self, work: str, count: int, *, python: str = "", **options: Any) -> Run:
        """Measure one work of `benchmarks.client`, or of the peer's with ``python``."""
        module = "benchmarks.peer_client" if python else "benchmarks.client"
        arguments = (work, str(count), json.dumps(options))
        if python and not self.emulator:
            self.ask("reset")
        found = self.run(module, *arguments, python=python or sys.executable)
        return Run(**found) if self.emulator else Run(**found, requests=self.ask("counts"))

    def ask(self, name: str) -> Any:
        """Call a control of the in-memory cloud."""
        return control(self.environment["AWS_ENDPOINT_URL"], name, {})

    def variables(self, python: str) -> dict[str, str]:
        """Return an interpreter's environment, with farcall's sources only for this one."""
        hidden = () if python == sys.executable else ("PYTHONPATH",)
        return {name: text for name, text in self.environment.items() if name not in hidden}


def control(url: str, name: str, document: Mapping[str, Any]) -> Any:
    """Call a control of the in-memory cloud, such as "reset" or "counts"."""
    with urllib.request.urlopen(f"{url}{CONTROL}{name}", json.dumps(document).encode()) as reply:
        return json.load(reply)


@contextlib.contextmanager
def played() -> Iterator[Stage]:
    """Start the in-memory cloud, and the process that runs its jobs."""
    with tempfile.TemporaryDirectory(prefix=PREFIX) as home, contextlib.ExitStack() as stack:
        cloud = stack.enter_context(_process(_environment(home), "benchmarks.cloud"))
        urls = json.loads(cloud.stdout.readline())
        stack.callback(cloud.stdin.close)
        fleet = _environment(home, urls["jobs"])
        stack.enter_context(_process(fleet, "benchmarks.fleet", urls["jobs"]))
        yield Stage(_environment(home, urls["client"]))


@contextlib.contextmanager
def emulated(*, docker: bool = False, kubernetes: bool = False) -> Iterator[Stage]:
    """Start the local AWS emulator, whose jobs are processes, containers or pods."""
    with (
        tempfile.TemporaryDirectory(prefix=PREFIX) as home,
        emulators.start(docker=docker, kubernetes=kubernetes) as aws,
    ):
        yield Stage({**_environment(home), **aws.environment}, aws)


@contextlib.contextmanager
def peer_python(*, wanted: bool) -> Iterator[str]:
    """Yield the path of the peer's Python, or "" if the peer is not measured.

    The peer is installed into a temporary virtual environment (140 MB), unless BENCHMARK_PEER_VENV
    names an environment that contains it.
    """
    with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
        venv = os.environ.get("BENCHMARK_PEER_VENV", folder)
        if wanted and venv == folder:
            subprocess.run([sys.executable, "-m", "venv", venv], check=True)
            install = (f"{venv}/bin/python", "-m", "pip", "install", "-qq", *_PEER_PACKAGES)
            subprocess.run(install, check=True)
        yield f"{venv}/bin/python" if wanted else ""


@contextlib.contextmanager
def _process(env: dict[str, str], module: str, *arguments: str) -> Iterator[Any]:
    command, pipe = [sys.executable, "-m", module, *arguments], subprocess.PIPE
    with subprocess.Popen(command, env=env, cwd=ROOT, stdin=pipe, stdout=pipe) as process:
        try:
            yield process
        finally:
            process.kill()


def _environment(home: str, url: str = "") -> dict[str, str]:
    """Return an environment without the user's AWS, Covalent and farcall settings."""
    removed = ("AWS_", "FARCALL_", "COVALENT_")
    given = {n: text for n, text in os.environ.items() if not n.startswith(removed)}
    sources = [str(ROOT), str(ROOT / "executor"), str(ROOT / "runtime_image")]
    role = f"arn:aws:iam::{ACCOUNT}:role/benchmark"
    return {
        **{name: text for name, text in given.items() if "proxy" not in name.lower()},
        "HOME": home,
        "PYTHONPATH": os.pathsep.join([*sources, *filter(None, [given.get("PYTHONPATH")])]),
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "benchmark",
        "AWS_SECRET_ACCESS_KEY": "benchmark",
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "FARCALL_S3_BUCKET_NAME": BUCKET,
        "FARCALL_QUEUE": "benchmark",
        "FARCALL_BATCH_JOB_ROLE_NAME": role,
        "FARCALL_BATCH_EXECUTION_ROLE_NAME": role,
        "FARCALL_BATCH_JOB_LOG_GROUP_NAME": "",
        "FARCALL_IMAGE": "benchmark",
    }
