"""The processes around the one that is measured, and running that one."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.batch import ACCOUNT, REGION
from benchmarks.cloud import CONTROL

ROOT = Path(__file__).resolve().parents[1]
BUCKET = "benchmark"


@dataclass(frozen=True)
class Stage:
    """Where a measured process finds its cloud.

    Attributes:
        client_url: The port for the client.
        environment: Its whole environment.
        root: The checkout whose code it runs.
    """

    client_url: str
    environment: dict[str, str]
    root: Path = ROOT

    def run(self, *arguments: str, python: str = sys.executable) -> dict[str, Any]:
        """Run a fresh process and return the last line it prints, JSON."""
        command = [python, *arguments]
        done = subprocess.run(
            command,
            env=self.environment,
            cwd=self.root,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return told

    def ask(self, name: str, document: Mapping[str, Any] | None = None) -> Any:
        """Ask the cloud for its counts, or tell it something."""
        data = json.dumps(document or {}).encode()
        with urllib.request.urlopen(f"{self.client_url}{CONTROL}{name}", data) as reply:
            return json.load(reply)


@contextlib.contextmanager
def stage(more: Mapping[str, str] | None = None, root: Path = ROOT) -> Iterator[Stage]:
    """Start cloud and fleet, and end them.

    Args:
        more: Goes into every process's environment.
        root: The checkout whose code they run.
    """
    more = more or {}
    with contextlib.ExitStack() as stack:
        ours = environment("", root) | more
        cloud = stack.enter_context(_process(ours, root, "benchmarks.cloud"))
        urls = json.loads(cloud.stdout.readline())
        stack.callback(cloud.stdin.close)
        fleet = environment(urls["jobs"], root) | more
        stack.enter_context(_process(fleet, root, "benchmarks.fleet", urls["jobs"]))
        yield Stage(urls["client"], environment(urls["client"], root) | more, root)


@contextlib.contextmanager
def _process(env: dict[str, str], root: Path, module: str, *arguments: str) -> Iterator[Any]:
    with subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env=env,
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def environment(url: str, root: Path = ROOT) -> dict[str, str]:
    """Return the environment of a process: nothing of the user's AWS, nothing of farcall's."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AWS_", "FARCALL_")) and "proxy" not in name.lower()
    }
    sources = (root, root / "executor", root / "runtime_image")
    given = os.environ.get("PYTHONPATH")
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join([*map(str, sources), *([given] if given else [])]),
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
        "FARCALL_BATCH_JOB_ROLE_NAME": f"arn:aws:iam::{ACCOUNT}:role/benchmark",
        "FARCALL_BATCH_EXECUTION_ROLE_NAME": f"arn:aws:iam::{ACCOUNT}:role/benchmark",
        "FARCALL_BATCH_JOB_LOG_GROUP_NAME": "",
        "FARCALL_IMAGE": "benchmark",
    }
