"""Runs a command on a terminal of its own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Sequence
from typing import NamedTuple


class Shown(NamedTuple):
    """What a command has written to its terminal, and the code it left with."""

    text: str
    returncode: int


def run(command: Sequence[object], *, columns: int = 80, answer: str = "") -> Shown:
    """Run a command on a terminal, and give it an answer to what it asks."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    with subprocess.Popen(
        list(map(str, command)),
        stdin=its,
        stdout=its,
        stderr=its,
        env={**environment, "TERM": "xterm-256color"},
    ) as process:
        os.close(its)
        os.write(ours, answer.encode())
        data = b""
        with contextlib.suppress(OSError):  # Linux's way to tell that the other end is closed
            while piece := os.read(ours, 65_536):
                data += piece
        os.close(ours)
        process.wait()
    return Shown(data.decode().replace("\r\n", "\n"), process.returncode)
