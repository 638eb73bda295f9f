"""Runs ``farcall`` or ``torchx`` without half a second of imports.

Like an installed command, each one has its own process with arguments, environment, directory,
streams and exit code; but the process is forked from a server that has imported the commands.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from tests.support import command_server, terminal
from tests.support.command_server import FARCALL as FARCALL
from tests.support.command_server import LENGTH_BYTES
from tests.support.command_server import TORCHX as TORCHX


def run_installed(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command."""
    return subprocess.run([FARCALL, *arguments], capture_output=True, text=True, check=False)


class Commands:
    """Runs a program's commands with a fork server, which must be closed.

    Args:
        program: `FARCALL` or `TORCHX`.
    """

    def __init__(self, program: Path = FARCALL) -> None:
        self._control, its = socket.socketpair()
        self._one_at_a_time = threading.Lock()
        with its:
            self._server = subprocess.Popen(
                [sys.executable, command_server.__file__, str(its.fileno()), str(program)],
                pass_fds=[its.fileno()],
            )

    def close(self) -> None:
        """Stop the fork server."""
        self._control.close()
        self._server.wait()

    def run(
        self, *arguments: object, answer: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command with additional environment variables; return exit code and output."""
        words = list(map(str, arguments))
        with contextlib.ExitStack() as stack:
            stdin, stdout, stderr = (
                stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)
            )
            stdin.write(answer.encode())
            stdin.seek(0)
            streams = [stream.fileno() for stream in (stdin, stdout, stderr)]
            code = self._start(words, streams, {**os.environ, **environment})()
            said = []
            for stream in (stdout, stderr):
                stream.seek(0)
                said.append(stream.read().decode())
        return subprocess.CompletedProcess(words, code, *said)

    def run_on_terminal(
        self, *arguments: object, columns: int = 80, answer: str = ""
    ) -> terminal.Shown:
        """Run a command on a terminal, and type an answer to its prompts."""
        words = list(map(str, arguments))
        return terminal.show(
            lambda its, environment: self._start(words, 3 * [its], environment),
            columns=columns,
            answer=answer,
        )

    def _start(
        self, words: list[str], streams: list[int], environment: dict[str, str]
    ) -> Callable[[], int]:
        """Start a command; return a function that waits for it and returns the exit code."""
        code, its = os.pipe()
        request = {"argv": words, "cwd": os.getcwd(), "env": environment}  # noqa: PTH109 - a text
        data = json.dumps(request).encode()
        try:
            with self._one_at_a_time:
                length = len(data).to_bytes(LENGTH_BYTES, "big")
                socket.send_fds(self._control, [length], [*streams, its])
                self._control.sendall(data)
        finally:
            os.close(its)

        def wait() -> int:
            with os.fdopen(code) as answer:
                return int(answer.read())

        return wait
