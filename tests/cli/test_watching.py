"""``farcall list --watch`` on a terminal and in a pipe.

Starts the local AWS emulator and the command on a pseudo-terminal, because the display changes
with the job.
"""

import asyncio
import contextlib
import os
import pty
import secrets
import signal
import subprocess

import pytest

from tests.support.commands import FARCALL
from tests.support.patience import PATIENCE_S
from tests.support.tasks import wait_for


@pytest.fixture
async def held(make_executor, tmp_path):
    """Return arguments that list one job, the job, and the file that lets it finish."""
    gate, workflow = tmp_path / "gate", f"watched-{secrets.token_hex(4)}"
    async with make_executor(workflow=workflow) as executor:
        job = await executor.submit(wait_for, str(gate))
        yield ["list", "--watch", "--workflow", workflow], job, gate
        gate.touch()


def start(arguments, **streams):
    return subprocess.Popen([FARCALL, *arguments], **streams)


async def ended(started):
    started.send_signal(signal.SIGINT)
    return await asyncio.to_thread(started.wait, timeout=PATIENCE_S)


async def test_piped_output_has_line_per_change(held):
    arguments, job, gate = held
    pipe = subprocess.PIPE
    with start(arguments, stdout=pipe, stderr=pipe, text=True) as started:
        lines = [await asyncio.to_thread(started.stdout.readline)]
        gate.touch()
        while "Succeeded" not in lines[-1]:
            lines.append(await asyncio.to_thread(started.stdout.readline))
            assert lines[-1], started.stderr.read()
        assert await ended(started) == 130
        assert (started.stdout.read(), started.stderr.read().strip()) == ("", "")
    assert len(lines) == len(set(lines))
    assert all(line.startswith(f"{job.id}  ") for line in lines)


async def test_terminal_uses_alternate_screen(held):
    arguments, job, gate = held
    ours, its = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    environment |= {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "24"}
    started = start(arguments, stdin=its, stdout=its, stderr=its, env=environment)
    os.close(its)
    shown = ""

    async def read_until(text):
        nonlocal shown
        while text not in shown:
            shown += (await asyncio.to_thread(os.read, ours, 65_536)).decode(errors="replace")

    await read_until(f"{job.id[:8]}  ")
    gate.touch()
    await read_until("Succeeded")
    assert "\x1b[?1049h" in shown
    assert "1 job at " in shown
    assert job.id not in shown
    leaving = asyncio.ensure_future(ended(started))
    with contextlib.suppress(OSError):  # Linux raises EIO when the other end is closed.
        while piece := await asyncio.to_thread(os.read, ours, 65_536):
            shown += piece.decode(errors="replace")
    os.close(ours)
    assert await leaving == 130
    assert "\x1b[?1049l" in shown
    assert "Aborted" not in shown
    assert "Traceback" not in shown
