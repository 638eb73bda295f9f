"""Fork server: has imported farcall's commands, and forks one whenever it is told.

Runs as a script, which `tests.support.commands` starts and talks with over a socket. A request is
four bytes of length and JSON; with it come the command's three streams, and a fourth descriptor
that gets its exit code.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

FARCALL = Path(sys.executable).with_name("farcall")
LENGTH_BYTES = 4


def _serve(control: socket.socket) -> None:
    """Fork commands until the other side is gone; a command comes back from here."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait
    while True:
        length, descriptors, _, _ = socket.recv_fds(control, LENGTH_BYTES, 4)
        if not length:
            sys.exit()
        request = json.loads(control.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL))
        if os.fork() == 0:
            control.close()
            *streams, code = descriptors
            if _is_command(code):
                return _become(request, streams)
        for descriptor in descriptors:
            os.close(descriptor)


def _is_command(code: int) -> bool:
    """Fork again, and be the command; the other one waits for it and tells how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os.close(code)
        return True
    _, status = os.waitpid(pid, 0)
    os.write(code, str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(request: dict[str, Any], streams: list[int]) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # A stream takes from its file, once and for all, whether it is a terminal.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        old = getattr(sys, name)
        new = open(  # noqa: SIM115 - for as long as the process lives
            old.fileno(), mode, encoding=old.encoding, errors=old.errors, closefd=False
        )
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
    sys.stderr.reconfigure(line_buffering=True)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = [str(FARCALL), *request["argv"]]


def _main() -> None:
    sys.path[0] = str(FARCALL.parent)  # as the installed command has it
    from farcall.cli.main import COMMANDS, main
    from farcall.model.timing import Timing, put_in_force

    for command in COMMANDS.values():
        importlib.import_module(f"farcall.cli.{command.place.partition(':')[0]}")
    gc.collect()
    gc.freeze()
    put_in_force(Timing.fast())
    _serve(socket.socket(fileno=int(sys.argv[1])))
    main()


if __name__ == "__main__":
    _main()
