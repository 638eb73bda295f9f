"""A separate Covalent server with its own home and port, for this machine only.

Covalent is not imported here, only in the server's process.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from farcall.covalent.api import Covalent, dispatcher_section
from farcall.model.errors import FarcallError
from tests.support.patience import until

#: Time limit for a server's start in seconds. A start takes two seconds, and longer after an
#: installation, because Python compiles about 2,000 modules.
START_TIMEOUT_S = 90.0
#: Time limit in seconds for a stopped server to cancel its dispatches and exit.
STOP_TIMEOUT_S = 10.0

_LOG_TAIL_LINES = 30
#: Time limit for a killed process to release its port, in seconds.
_FREE_S = 5.0

_LOOPBACK = "127.0.0.1"
#: Below the ports that Linux uses for outgoing connections: a connection could occupy the port of
#: a server during its restart.
_PORTS = range(20_000, 32_768)

#: What ``covalent start`` does, in one process: bring the database up to date, write the
#: configuration, run Covalent's ``app.py`` as the main program.
#:
#: Like `farcall_local`, the process exits when its standard input is closed, because the process
#: that started it holds the other end. Like ``covalent stop``, it sends SIGINT to the server and
#: SIGKILL to the workers, and kills itself if that takes too long.
_BOOT = """
import importlib.util, json, os, runpy, signal, sys, threading, time

def end_with(lifeline, timeout):
    import multiprocessing
    while os.read(lifeline, 1):
        pass
    children = multiprocessing.active_children()
    os.kill(os.getpid(), signal.SIGINT)
    for child in children:
        child.kill()
    time.sleep(timeout)
    os.killpg(0, signal.SIGKILL)

options = json.loads(sys.argv[1])
lifeline = os.dup(0)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
sys.stdout.reconfigure(line_buffering=True)
threading.Thread(target=end_with, args=(lifeline, options["timeout"]), daemon=True).start()

package = importlib.util.find_spec("covalent_ui")
if package is None:
    sys.exit("Covalent is not installed: pip install covalent")
directory = package.submodule_search_locations[0]
# The server names its module "app" and its templates relatively.
os.chdir(directory)
sys.path[0] = directory
# Modules that read the program's name on import must get the final one.
__file__ = os.path.join(directory, "app.py")
sys.argv = [__file__, *options["arguments"]]

from covalent._shared_files.config import set_config
from covalent_dispatcher._db.datastore import workflow_db

set_config(options["configuration"])
if workflow_db.is_migration_pending:
    workflow_db.run_migrations(logging_enabled=False)
runpy.run_path(__file__, run_name="__main__")
"""


class CovalentServer:
    """A Covalent server that shares nothing with the user's; a context manager that stops it.

    It runs in a child process that exits when this process exits for any reason. Its state is in
    its home: a later server with the same home has the same port and the same dispatches. Every
    client that can reach its port can run code as this user, so it listens only on the loopback
    interface. It has no Dask cluster.

    Args:
        home: Directory for all of Covalent's files; created if it is missing.
        environment: Additional environment variables for the server, such as those of an AWS
            account. This process's own ``COVALENT_*`` variables are not passed on.
        python: Interpreter of the environment in which Covalent is installed.

    Attributes:
        home: Absolute path of the home.
        port: Port of every service and of the web UI.
        address: URL of the server.
        environment: Environment variables with which ``import covalent`` in another process finds
            the server and does not change the user's configuration.
    """

    def __init__(
        self,
        home: Path,
        environment: Mapping[str, str] | None = None,
        *,
        python: str = sys.executable,
    ) -> None:
        self.home = home.absolute()
        self.port = _configured_port(self.home) or _free_port()
        self.address = f"http://{_LOOPBACK}:{self.port}"
        self.environment = _client_environment(self.home, self.port)
        self._given = dict(environment or {})
        self._python = python
        self._log = self.home / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """ID of the server's process, which leads its own process group."""
        assert self._process is not None, f"the server in {self.home} was not started"
        return self._process.pid

    @property
    def log(self) -> str:
        """Output of all servers of this home so far."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def start(self) -> None:
        """Start the server and wait until it responds. No-op if it is running.

        Raises:
            AssertionError: The server has exited or does not respond, or its port is in use.
        """
        if self._process is not None and not self._has_ended():
            return
        self.kill()
        until(lambda: _is_free(self.port), _FREE_S)
        try:
            self._process = self._launch()
            until(self._answers, START_TIMEOUT_S)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Stop the server like ``covalent stop``, which cancels dispatches. Idempotent."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(AssertionError):  # the server tries to exit by itself first
            until(self._has_ended, STOP_TIMEOUT_S + 1)
        self.kill()

    def kill(self) -> None:
        """Kill the server and its child processes immediately."""
        if self._process is None:
            return
        # The process was not reaped yet, so its ID is not reused, even if it has exited. macOS
        # returns EPERM for a group that contains only such a process.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._process = None

    def _launch(self) -> subprocess.Popen[bytes]:
        options = {
            "arguments": ["--port", str(self.port), "--no-cluster"],
            "configuration": {
                "dispatcher.address": _LOOPBACK,
                "dispatcher.port": self.port,
                "user_interface.port": self.port,
                "sdk.no_cluster": "true",
            },
            "timeout": STOP_TIMEOUT_S,
        }
        # The home contains arguments and results of tasks.
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = self.home / "tmp"
        temporary.mkdir(exist_ok=True)
        environment = {
            # Covalent requires HOME, even if it uses no file in it.
            "HOME": str(self.home),
            **{k: v for k, v in os.environ.items() if not k.startswith("COVALENT_")},
            **self.environment,
            "TMPDIR": str(temporary),
            **self._given,
        }
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [self._python, "-c", _BOOT, json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=temporary,
                env=environment,
                # Ctrl-C must reach only the user's program, which decides when to stop the server.
                start_new_session=True,
            )

    def _answers(self) -> bool:
        """Return whether the server responds and can read its database."""
        tail = "\n".join(self.log.splitlines()[-_LOG_TAIL_LINES:])
        assert not self._has_ended(), f"the Covalent server ended while starting:\n{tail}"
        try:
            Covalent(self.address).running()
        except FarcallError:
            return False
        return True

    def _has_ended(self) -> bool:
        """Return whether the process has exited, without reaping it, so its ID is not reused."""
        assert self._process is not None
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._process.pid, flags) is not None


def _client_environment(home: Path, port: int) -> dict[str, str]:
    """Return environment variables that make Covalent use a home.

    Covalent creates its configuration file from these variables when the server or a client first
    imports it; later, only the file counts, except for ``COVALENT_DATA_DIR`` and
    ``COVALENT_DISABLE_DASK``.
    """
    return {
        "COVALENT_CONFIG_DIR": str(home / "config"),
        "COVALENT_EXECUTOR_DIR": str(home / "config" / "executor_plugins"),
        "COVALENT_DATA_DIR": str(home / "results"),
        "COVALENT_DATABASE": str(home / "data" / "dispatcher.sqlite"),
        "COVALENT_CACHE_DIR": str(home / "cache"),
        "COVALENT_LOGDIR": str(home / "cache"),
        # For paths without a COVALENT_* variable, mainly the executors' working directories.
        "XDG_CACHE_HOME": str(home / "cache"),
        "XDG_DATA_HOME": str(home / "data"),
        "COVALENT_DISPATCHER_ADDR": _LOOPBACK,
        "COVALENT_SVC_PORT": str(port),
        "COVALENT_DISABLE_DASK": "1",
    }


def _configured_port(home: Path) -> int | None:
    """Return the port in a home's configuration, or None without a configuration."""
    try:
        return int(dispatcher_section(home / "config" / "covalent.conf")["port"])
    except FileNotFoundError:
        return None


def _free_port() -> int:
    return next(port for port in random.sample(_PORTS, 100) if _is_free(port))


def _is_free(port: int) -> bool:
    with socket.socket() as candidate:
        # Like the server, ignore lingering connections of a former server.
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind((_LOOPBACK, port))
        except OSError:
            return False
    return True
