"""The process behind `farcall_local.start`.

It takes its options as JSON in its first argument, writes one line of JSON, and ends when its
standard input ends or SIGTERM comes. The process that started it holds the other end of that
input, so it ends with that process, even a killed one. The line is the environment, written when
the port is open, or ``{"error": ...}`` with a sentence for the user.
"""

from __future__ import annotations

import asyncio
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

#: So many files and connections may be open, where the system allows it, with jobs, too. By
#: itself it would be 256 on macOS and 1024 on most Linuxes.
OPEN_FILES = 10_240


def main(
    cpus: int | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    docker: bool = False,
    kubernetes: bool = False,
    extension: dict[str, Any] | None = None,
) -> None:
    """Serve until nobody needs it any more."""
    log = logging.StreamHandler()
    log.addFilter(Shown())  # strangers' text too, which libraries may log
    logging.basicConfig(level=logging.WARNING, handlers=[log])
    _allow_files()
    signal.signal(signal.SIGTERM, _end)
    threading.Thread(target=_end_with_input, daemon=True).start()
    if docker:
        _check_engine()
    try:
        listener = names.listen(host, port)
    except names.NoPortError as error:
        _tell({"error": str(error)})
        raise SystemExit(1) from None
    key = AccessKey.new()
    address, port = listener.getsockname()[:2]
    added = _load(extension)
    empty = added is not None and added.is_empty
    environment = names.client_environment(address, port, key, docker=docker, empty=empty)
    place = None
    if kubernetes:
        from farcall_local.kubernetes.place import Place

        place = Place(address)
        environment.update(place.environment)
    _tell(environment)
    # Importing moto takes about a second, in which the caller can import what it needs itself;
    # its first request waits in the open port.
    from farcall_local.services.server import LocalServer

    options: dict[str, Any] = {"key": key, "extension": added, "kubernetes": place or False}
    if docker:
        from farcall_local.runners.docker import DockerRunner

        options["runner"] = DockerRunner
    # The threads of moto keep the interpreter busy; Batch's loop should not wait 5 ms for it.
    sys.setswitchinterval(0.001)
    with LocalServer(cpus=cpus, listener=listener, **options):
        threading.Event().wait()


def _load(extension: dict[str, Any] | None) -> Any:
    """Make what tests add: ``name`` is ``module:class``, ``options`` its arguments."""
    if extension is None:
        return None
    module, _, name = extension["name"].partition(":")
    return getattr(importlib.import_module(module), name)(**extension["options"])


def _allow_files() -> None:
    """Have room for many connections and jobs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _check_engine() -> None:
    """End with a sentence where containers cannot be run."""
    from farcall_local.runners.docker import NoEngineError, check_engine

    try:
        asyncio.run(check_engine())
    except NoEngineError as error:
        _tell({"error": str(error)})
        raise SystemExit(1) from None


def _tell(document: dict[str, str]) -> None:
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
