"""Runs a command on a new pseudo-terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Shown(NamedTuple):
    """Terminal output and exit code of a command."""

    text: str
    returncode: int


def run(command: Sequence[object], *, columns: int = 80, answer: str = "") -> Shown:
    """Run a command on a pseudo-terminal, and type an answer to its prompts."""

    def start(its: int, environment: dict[str, str]) -> Callable[[], int]:
        words = list(map(str, command))
        return subprocess.Popen(words, stdin=its, stdout=its, stderr=its, env=environment).wait

    return show(start, columns=columns, answer=answer)


def show(
    start: Callable[[int, dict[str, str]], Callable[[], int]], *, columns: int, answer: str
) -> Shown:
    """Start a command on a pseudo-terminal; return its output and exit code.

    Args:
        start: Receives the terminal and an environment; returns a function that waits for the
            exit code.
        columns: Width of the terminal.
        answer: Text to type.
    """
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    wait = start(its, {**environment, "TERM": "xterm-256color"})
    os.close(its)
    os.write(ours, answer.encode())
    data = b""
    with contextlib.suppress(OSError):  # Linux raises EIO when the other end is closed.
        while piece := os.read(ours, 65_536):
            data += piece
    os.close(ours)
    return Shown(data.decode().replace("\r\n", "\n"), wait())
