"""``python -m farcall_runtime``: runs the container's task."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from typing import NoReturn

_PRINTING_S = 5
_FAILED = 74  # ExitCode.SUPERVISOR_FAILED, whose import may fail


def main() -> int:
    """Run the task, or print the contract with ``--contract``; return the exit code."""
    # First, because a container's first process does not receive signals without a handler.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    # Imported objects stay, so searching them for garbage is useless.
    gc.disable()
    try:
        _open_standard()
        if sys.argv[1:] == ["--contract"]:
            import json

            from farcall_runtime import contract

            print(json.dumps(contract.describe(), indent=2))  # noqa: T201
            return 0
        if "FARCALL_WORKER_IDLE_S" in os.environ:  # contract.ENV_WORKER_IDLE_S
            from farcall_runtime import worker

            return worker.run(os.environ)
        from farcall_runtime import runner

        return runner.run(os.environ)
    except BaseException:  # the last resort; exit code 1 would mean that the function raised
        # The output may have no reader.
        signal.signal(signal.SIGALRM, lambda *_: os._exit(_FAILED))
        signal.alarm(_PRINTING_S)
        # The interpreter's own hook prints it, because another import may fail.
        with contextlib.suppress(Exception):
            sys.__excepthook__(*sys.exc_info())
        return _FAILED


def leave(code: int) -> NoReturn:
    """Exit immediately with a code.

    An abandoned request still has a thread, and an interpreter whose stdout is closed exits with
    another code.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def _open_standard() -> None:
    """Open descriptors 0 to 2 if closed, before a pipe of farcall gets the number."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


if __name__ == "__main__":
    leave(main())
