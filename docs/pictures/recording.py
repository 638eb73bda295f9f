"""A command's output, as a terminal gets it."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
import time
from collections.abc import Sequence
from pathlib import Path

_PATIENCE_S = 60
_ROWS = 60


def record(
    command: Sequence[str],
    environment: dict[str, str],
    folder: Path,
    columns: int,
    until: str = "",
) -> str:
    """Run a command in a pseudo-terminal of its own.

    Args:
        command: Its words.
        environment: All its variables.
        folder: Where it runs.
        columns: The terminal's width.
        until: Ctrl-C is pressed once this text has come; else it runs to its end.

    Returns:
        What it wrote, with escape sequences.

    Raises:
        TimeoutError: It did not end, or the text did not come.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, columns, 0, 0))
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        cwd=folder,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    try:
        return _read(ours, until.encode()).decode().replace("\r\n", "\n")
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _read(terminal: int, until: bytes) -> bytes:
    said = b""
    os.set_blocking(terminal, False)
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        try:
            more = os.read(terminal, 65536)
        except BlockingIOError:
            time.sleep(0.05)
            continue
        except OSError:  # so Linux tells that the other end is closed
            return said
        if not more:
            return said
        said += more
        if until and until in said:
            os.write(terminal, b"\x03")
            until = b""
    raise TimeoutError(f"the command goes on after {_PATIENCE_S} s; it wrote {said!r}")
