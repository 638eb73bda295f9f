"""Fork server: imports the commands of farcall or TorchX, and forks a process per request.

Runs as a script, which `tests.support.commands` starts and uses via a socket. A request has four
bytes of length, then JSON, with the command's three streams and a fourth descriptor that receives
the exit code.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

FARCALL = Path(sys.executable).with_name("farcall")
TORCHX = Path(sys.executable).with_name("torchx")
LENGTH_BYTES = 4


def _serve(control: socket.socket, program: Path) -> None:
    """Fork commands until the client closes the socket; returns only in a command's process."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    while True:
        length, descriptors, _, _ = socket.recv_fds(control, LENGTH_BYTES, 4)
        if not length:
            sys.exit()
        request = json.loads(control.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL))
        if os.fork() == 0:
            control.close()
            *streams, code = descriptors
            if _is_command(code):
                return _become(request, streams, program)
        for descriptor in descriptors:
            os.close(descriptor)


def _is_command(code: int) -> bool:
    """Fork again and return True in the child; the parent waits and writes the exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os.close(code)
        return True
    _, status = os.waitpid(pid, 0)
    os.write(code, str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(request: dict[str, Any], streams: list[int], program: Path) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # A stream checks only once whether its file is a terminal, so new streams are created.
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
    sys.argv = [str(program), *request["argv"]]


def _farcall() -> Callable[[], object]:
    from farcall.cli.main import COMMANDS, main

    for command in COMMANDS.values():
        importlib.import_module(f"farcall.cli.{command.place.partition(':')[0]}")
    return main


def _torchx() -> Callable[[], object]:
    from torchx.cli.main import main

    importlib.import_module("farcall.torchx.batch.scheduler")
    importlib.import_module("torchx.components.dist")
    importlib.import_module("torchx.components.utils")
    globals()["main"] = main  # as in the installed command
    return lambda: main(sys.argv[1:])


_PROGRAMS = {FARCALL: _farcall, TORCHX: _torchx}


def _main() -> None:
    program = Path(sys.argv[2])
    sys.path[0] = str(program.parent)  # as in the installed command
    from farcall.model.timing import Timing, put_in_force

    run = _PROGRAMS[program]()
    gc.collect()
    gc.freeze()
    put_in_force(Timing.fast())
    _serve(socket.socket(fileno=int(sys.argv[1])), program)
    run()


if __name__ == "__main__":
    _main()
