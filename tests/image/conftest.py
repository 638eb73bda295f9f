"""The jobs' image in a docker engine; ``.ci/with-engine`` provides both."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.image.cloud import (  # noqa: F401
    account,
    aws,
    batch,
    embedded,
    knobs,
    make_executor,
    options,
    proxy,
)
from tests.support.absent import Absent
from tests.support.patience import PATIENCE_S

# Read here, because tests do not see this environment.
_IMAGE = os.environ.get("TEST_IMAGE", "")
_BASE_IMAGE = os.environ.get("TEST_BASE_IMAGE", "")

#: Label of all objects that one test run creates; containers inherit it from their image.
RUN_LABEL = "farcall.test-run"
_COMMAND_S = 90.0


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    reason = "There is no image to test: make test-containers"
    return None if _IMAGE else Absent.because(reason, module_path, parent)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that start containers as slow."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.slow)


def _try_docker(*arguments: str, stdin: str | bytes = b"") -> subprocess.CompletedProcess[str]:
    command = ["docker", *arguments]
    given = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(command, input=given, capture_output=True, timeout=_COMMAND_S)
    return subprocess.CompletedProcess(
        command, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def _docker(*arguments: str, stdin: str | bytes = b"") -> str:
    done = _try_docker(*arguments, stdin=stdin)
    if done.returncode != 0:
        pytest.fail(f"{' '.join(done.args)}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


@pytest.fixture(scope="session")
def docker():
    """Function that runs docker's CLI, ``docker("run", "--rm", image)``; it returns stdout."""
    return _docker


@pytest.fixture(scope="session")
def try_docker():
    """Like `docker`, but the command may fail; returns exit code, stdout and stderr."""
    return _try_docker


@pytest.fixture(scope="session")
def image(_engine):
    """The image built from the Dockerfile."""
    return _IMAGE


@pytest.fixture(scope="session")
def base_image(_engine):
    """The base image of the image."""
    return _BASE_IMAGE


@pytest.fixture(scope="session")
def run_label(_engine):
    """The label and its value, for networks and volumes that a test creates."""
    return f"{RUN_LABEL}={_engine}"


@pytest.fixture(scope="session", autouse=True)
def _engine():
    """The run's name; the teardown checks that no containers are left."""
    labels = json.loads(_docker("image", "inspect", _IMAGE))[0]["Config"]["Labels"]
    run = labels.get(RUN_LABEL)
    assert run, f"{_IMAGE} lacks the label {RUN_LABEL}"
    yield run
    deadline = time.monotonic() + PATIENCE_S
    # `docker run --rm` removes a container shortly after its exit.
    while left := _containers(run):
        assert time.monotonic() < deadline, f"containers were left:\n{left}"
        time.sleep(0.1)


def _containers(run: str) -> str:
    shown = "{{.Names}} {{.Image}} {{.Status}} {{.Labels}}"
    return _docker("ps", "--all", "--filter", f"label={RUN_LABEL}={run}", "--format", shown)
