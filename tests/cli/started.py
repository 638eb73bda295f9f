"""The installed command as a process that runs until its jobs end, or until Ctrl-C."""

from __future__ import annotations

import asyncio
import subprocess
from typing import Any

from tests.support.commands import FARCALL
from tests.support.patience import PATIENCE_S


def start(*arguments: object, **streams: Any) -> subprocess.Popen[str]:
    """Start the command with pipes, or with the given streams."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([FARCALL, *map(str, arguments)], text=True, **{**pipes, **streams})


async def line_of(started: subprocess.Popen[str]) -> str:
    """Return the next line on stdout."""
    assert started.stdout is not None
    return await asyncio.to_thread(started.stdout.readline)


async def end(started: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for the end; return the exit code and the remaining output."""
    out, err = await asyncio.to_thread(started.communicate, timeout=PATIENCE_S)
    return started.returncode, out, err
