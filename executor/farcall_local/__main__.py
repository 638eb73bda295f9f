"""Process that `farcall_local.start` starts.

It reads its options as JSON from its first argument, writes one line of JSON, and exits when its
standard input ends or on SIGTERM. The parent process holds the other end of that input, so the
server exits with its parent, even if the parent is killed. The line contains the environment,
written when the port is open, or ``{"error": ...}`` with a sentence for the user.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import json
import logging
import os
import resource
import signal
import sys
import threading
from typing import Any

from farcall.model.terminal import Shown
from farcall_local import names
from farcall_local.services.signatures import AccessKey

#: Maximum number of open files and connections, also in jobs, if the system allows it. The default
#: is 256 on macOS and 1024 on most Linux systems.
OPEN_FILES = 10_240


def main(
    cpus: int | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    docker: bool = False,
    strict: bool = False,
    extension: dict[str, Any] | None = None,
) -> None:
    """Serve until the parent process exits or SIGTERM arrives."""
    log = logging.StreamHandler()
    log.addFilter(Shown())  # libraries may log text from untrusted parties
    logging.basicConfig(level=logging.WARNING, handlers=[log])
    _allow_files()
    signal.signal(signal.SIGTERM, _end)
    threading.Thread(target=_end_with_input, daemon=True).start()
    options: dict[str, Any] = {}
    try:
        if docker:
            from farcall_local.runners.docker import DockerRunner, check_engine

            asyncio.run(check_engine())
            options["runner"] = DockerRunner
        if strict:
            options["runner"] = _strict_runner()
        listener = names.listen(host, port)
    except names.CannotStartError as error:
        _report({"error": str(error)})
        raise SystemExit(1) from None
    key = AccessKey.new()
    address, port = listener.getsockname()[:2]
    added = _load(extension)
    empty = added is not None and added.is_empty
    environment = names.client_environment(address, port, key, docker=docker, empty=empty)
    if added is not None:
        environment.update(added.environment)
    _report(environment)
    # Importing moto takes about a second, during which the caller can do its own imports; its
    # first request waits in the open port.
    from farcall_local.services.server import LocalServer

    options |= {"key": key, "extension": added}
    # The threads of moto keep the interpreter busy; Batch's loop should not wait 5 ms for it.
    sys.setswitchinterval(0.001)
    with LocalServer(cpus=cpus, listener=listener, **options):
        threading.Event().wait()


def _strict_runner() -> Any:
    """Return the runner of strict jobs, and report what this system does not support."""
    from farcall_local.runners.process import ProcessRunner
    from farcall_local.runners.strict import Strictness, missing

    lack = missing()
    if lack:
        sys.stderr.write(f"farcall local: {lack}\n")
    return functools.partial(ProcessRunner, strict=Strictness(can_hide=not lack))


def _load(extension: dict[str, Any] | None) -> Any:
    """Create a test extension from ``name`` (``module:class``) and ``options``."""
    if extension is None:
        return None
    module, _, name = extension["name"].partition(":")
    return getattr(importlib.import_module(module), name)(**extension["options"])


def _allow_files() -> None:
    """Raise the limit of open files for many connections and jobs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _report(document: dict[str, str]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def _end_with_input() -> None:
    # Not sys.stdin, whose lock the interpreter would wait for when SIGTERM ends it.
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _end(number: int, frame: Any) -> None:
    # A second signal must not disturb the killing of the jobs.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(0)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
