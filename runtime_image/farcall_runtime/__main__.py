"""``python -m farcall_runtime``: run the task this container was started for."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from typing import NoReturn

_PRINTING_S = 5
_FAILED = 74  # ExitCode.SUPERVISOR_FAILED, where importing that may be what fails


def main() -> int:
    """Run the task, or print the contract with ``--contract``; return the exit code."""
    # First of all: a container's first process does not get a signal it has no handler for.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    # What is imported stays, so looking through it for garbage is in vain.
    gc.disable()
    try:
        _open_standard()
        if sys.argv[1:] == ["--contract"]:
            import json

            from farcall_runtime import contract

            print(json.dumps(contract.describe(), indent=2))  # noqa: T201
            return 0
        from farcall_runtime import runner

        return runner.run(os.environ)
    except BaseException:  # the last resort; 1 would say that the function raised
        # Nobody may be reading what is printed.
        signal.signal(signal.SIGALRM, lambda *_: os._exit(_FAILED))
        signal.alarm(_PRINTING_S)
        # The interpreter's own way to print it: importing another may be what fails.
        with contextlib.suppress(Exception):
            sys.__excepthook__(*sys.exc_info())
        return _FAILED


def leave(code: int) -> NoReturn:
    """End this process with an exit code, whatever there is that would change it.

    A request that was given up still has a thread, and an interpreter whose stdout is gone leaves
    with a code of its own.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def _open_standard() -> None:
    """Fill what of descriptors 0 to 2 is closed, before a pipe of ours gets the number."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


if __name__ == "__main__":
    leave(main())
