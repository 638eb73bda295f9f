"""The process behind `farcall.local.start`.

It takes its options as JSON in its first argument, writes the environment as one line of JSON
when its port is open, and ends when its standard input ends or SIGTERM comes. The process that
started it holds the other end of that input, so it ends with that process, even a killed one.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from typing import Any

from farcall.local import names


def main(cpus: int | None, host: str, port: int) -> None:
    """Serve until nobody needs it any more."""
    logging.basicConfig(level=logging.WARNING)
    signal.signal(signal.SIGTERM, _end)
    threading.Thread(target=_end_with_input, daemon=True).start()
    listener = names.listen(host, port)
    environment = names.client_environment(*listener.getsockname()[:2])
    sys.stdout.write(json.dumps(environment) + "\n")
    sys.stdout.flush()
    # Importing moto takes about a second, in which the caller can import what it needs itself;
    # its first request waits in the open port.
    from farcall.local.server import LocalServer

    # The threads of moto keep the interpreter busy; Batch's loop should not wait 5 ms for it.
    sys.setswitchinterval(0.001)
    with LocalServer(cpus=cpus, listener=listener):
        threading.Event().wait()


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
