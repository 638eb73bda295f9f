"""A real Covalent server on the local AWS emulator, and Covalent in this process as its client.

Covalent reads its environment on import and keeps the configuration for the whole process.
Therefore, it is imported here, before the test modules: with a directory of this run, and the
address of the server that `server` starts later. The address of another server is passed in each
call.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import pytest

import farcall_local
from tests.support.absent import Absent
from tests.support.browser import BROWSER, LACKING
from tests.support.covalent_server import CovalentServer
from tests.support.patience import PATIENCE_S, until
from tests.support.timing import STREAM_S

#: Default time limit for a dispatch in seconds.
WAIT_TIMEOUT_S = PATIENCE_S
_POLL_S = 0.05
_FINAL = {"COMPLETED", "FAILED", "CANCELLED", "POSTPROCESSING_FAILED"}

_ROOT = Path(tempfile.mkdtemp(prefix="farcall-covalent-"))
#: Home directory of a user, which the tests must not change.
_USER = _ROOT / "user"


def _is_installed() -> bool:
    spec = importlib.util.find_spec("covalent")
    # This directory would be found as a namespace package, which has no origin.
    return spec is not None and spec.origin is not None


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    reason = "Covalent is not installed: pip install covalent 'fastapi<0.132'"
    if not _COVALENT:
        return Absent.because(reason, module_path, parent)
    if not BROWSER and module_path.name == "test_page_browser.py":
        return Absent.because(LACKING, module_path, parent)
    return None


def pytest_unconfigure() -> None:
    shutil.rmtree(_ROOT, ignore_errors=True)


def _isolate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the developer's accounts, options and files."""
    for name in os.environ:
        if name.startswith(("AWS_", "COVALENT_", "FARCALL_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(_USER))


def _import() -> CovalentServer | None:
    """Import Covalent; return the server that it is bound to, which is not running yet."""
    if not _is_installed():
        return None
    _USER.mkdir()
    bound = CovalentServer(_ROOT / "server")
    with pytest.MonkeyPatch.context() as monkeypatch, warnings.catch_warnings():
        _isolate(monkeypatch)
        for name, value in bound.environment.items():
            monkeypatch.setenv(name, value)
        # Ignore warnings of Covalent's dependencies.
        warnings.simplefilter("ignore")
        import covalent  # noqa: F401
    return bound


_COVALENT = _import()


_SERVERS = {"server", "new_server", "dispatch", "wait", "run"}
"""Fixtures that start a Covalent server."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests with a Covalent server as slow, because a server keeps a core busy."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and _SERVERS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True, scope="module")
def _test_module_travels(request):
    """Make Covalent pickle a test module by value, because the job cannot import tests."""
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)


@pytest.fixture(autouse=True)
def _covalent_environment(monkeypatch):
    """Give a test's child processes the same Covalent configuration as this process."""
    assert _COVALENT is not None
    for name in os.environ:
        if name.startswith("COVALENT_"):
            monkeypatch.delenv(name)
    for name, value in _COVALENT.environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def embedded():
    """The local AWS emulator that the server uses, with processors for several jobs."""
    with farcall_local.start(cpus=8) as aws:
        aws.configure(stream_s=STREAM_S)
        yield aws


@pytest.fixture(scope="session")
def server(embedded):
    """The shared server to which Covalent in this process is bound."""
    assert _COVALENT is not None
    # The server has the port that the import has written to the configuration.
    with pytest.MonkeyPatch.context() as monkeypatch:
        _isolate(monkeypatch)
        running = CovalentServer(_COVALENT.home, embedded.environment)
        running.start()
    with running:
        yield running


@pytest.fixture
def batch(embedded, monkeypatch):
    """Make an executor for small jobs of the shared server: ``batch(**options)``."""
    import covalent

    for name, value in embedded.environment.items():
        monkeypatch.setenv(name, value)
    small = {"vcpu": 1, "memory": 1, "retry_attempts": 1, "linger_s": 0.02, "poll_freq": 1}
    return lambda **options: covalent.executor.AWSBatchExecutor(**{**small, **options})


@pytest.fixture
def jobs(tmp_path):
    """Wait until tasks run; return the IDs of their jobs: ``jobs(*numbers)``.

    Each task writes its job's ID to the file ``job-NUMBER`` at once.
    """

    def wait(*numbers: int) -> list[str]:
        marks = [tmp_path / f"job-{number}" for number in numbers]
        until(lambda: all(mark.exists() for mark in marks))
        return [mark.read_text() for mark in marks]

    return wait


@pytest.fixture
def new_server(tmp_path):
    """Return a function that starts servers with separate homes, which tests may kill."""
    started: list[CovalentServer] = []

    def start(
        home: Path | None = None, environment: dict[str, str] | None = None, **options: Any
    ) -> CovalentServer:
        home = home or tmp_path / f"server-{len(started)}"
        started.append(CovalentServer(home, environment, **options))
        started[-1].start()
        return started[-1]

    yield start
    for one in started:
        one.stop()


@pytest.fixture
def dispatch(request):
    """Function that dispatches a lattice and returns the dispatch ID."""
    import covalent

    def start(
        lattice: Any, *args: Any, server: CovalentServer | None = None, **kwargs: Any
    ) -> str:
        server = server or request.getfixturevalue("server")
        return covalent.dispatch(lattice, dispatcher_addr=server.address)(*args, **kwargs)

    return start


@pytest.fixture
def status():
    """Return a dispatch's status: ``status(dispatch_id, server=None)``."""
    import covalent

    def ask(dispatch_id: str, server: CovalentServer | None = None) -> str:
        address = (server or _COVALENT).address
        answer = covalent.get_result(dispatch_id, dispatcher_addr=address, status_only=True)
        return str(answer["status"])

    return ask


@pytest.fixture
def wait(request, status):
    """Function that waits for the end of a dispatch and returns Covalent's result object."""
    import covalent

    def until_ended(
        dispatch_id: str,
        *,
        server: CovalentServer | None = None,
        timeout_s: float = WAIT_TIMEOUT_S,
    ) -> Any:
        server = server or request.getfixturevalue("server")
        deadline = time.monotonic() + timeout_s
        # Covalent's own wait has no timeout and polls only once a second.
        while (state := status(dispatch_id, server)) not in _FINAL:
            if time.monotonic() > deadline:
                pytest.fail(f"{dispatch_id} is {state} after {timeout_s} s\n{server.log[-4000:]}")
            time.sleep(_POLL_S)
        return covalent.get_result(dispatch_id, dispatcher_addr=server.address)

    return until_ended


@pytest.fixture
def run(dispatch, wait):
    """Dispatch to the shared server and wait: ``run(lattice, *args, **kwargs)``."""
    return lambda lattice, *args, **kwargs: wait(dispatch(lattice, *args, **kwargs))


@pytest.fixture
def packing():
    """Build lattices as with COVALENT_ENABLE_TASK_PACKING, which is read on import."""
    lattices = sys.modules["covalent._workflow.lattice"]
    read, answers = lattices.get_config, {"sdk.task_packing": "true"}
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(lattices, "get_config", lambda key: answers.get(key) or read(key))
        yield


class Node(NamedTuple):
    """One electron in Covalent; missing texts are empty."""

    name: str
    status: str
    error: str
    stdout: str
    stderr: str
    output: Any


@pytest.fixture
def node():
    """Read one electron of a result object: ``node(result, node_id)``."""

    def read(result: Any, node_id: int) -> Node:
        known = result.get_node_result(node_id)
        output = known["output"]
        return Node(
            name=known["node_name"],
            status=str(known["status"]),
            error=known["error"] or "",
            stdout=known["stdout"] or "",
            stderr=known["stderr"] or "",
            output=None if output is None else output.get_deserialized(),
        )

    return read
