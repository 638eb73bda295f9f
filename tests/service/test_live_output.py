"""Job output in the caller's own streams.

Starts the local AWS emulator, because output must arrive while the job runs.
"""

import asyncio
import sys
import time
from pathlib import Path

import pytest

from farcall import BatchPoolExecutor
from tests.support.patience import until_async


def greet(gate, number):
    """Print, wait for the gate, and print again."""
    print(f"hello from {number}", flush=True)
    print(f"complaint of {number}", file=sys.stderr, flush=True)
    while not Path(gate).exists():
        time.sleep(0.02)
    sys.stderr.write("\r10%\r100%\n")
    print(f"bye from {number}", end="")
    if number == 2:
        raise ValueError("on purpose")
    return number


class Shown:
    """Output in this process's own streams."""

    def __init__(self, capsys):
        self._capsys = capsys
        self.out = self.err = ""

    def look(self):
        out, err = self._capsys.readouterr()
        self.out += out
        self.err += err
        return self


@pytest.fixture
def shown(capsys):
    return Shown(capsys)


async def test_running_call_output_is_shown(executor, shown, tmp_path):
    task = executor.task(output=True)(greet)
    call = asyncio.ensure_future(task(str(tmp_path / "go"), 7))
    await until_async(lambda: "hello" in shown.look().out and "complaint" in shown.err)
    assert not call.done()
    (tmp_path / "go").touch()

    assert await call == 7
    shown.look()
    assert shown.out == "greet | hello from 7\ngreet | bye from 7\n"
    assert shown.err == "greet | complaint of 7\ngreet | 100%\n"


async def test_map_output_has_call_index(executor, shown, tmp_path):
    gate = tmp_path / "go"

    async def run():
        task = executor.task(greet)
        return await task.map([str(gate)] * 2, (0, 2), output=True, return_exceptions=True)

    running = asyncio.ensure_future(run())
    await until_async(lambda: shown.look().out.count("hello") == 2)
    gate.touch()

    value, error = await running
    assert (value, str(error)) == (0, "on purpose")
    shown.look()
    for number, said in enumerate((0, 2)):
        lines = [line for line in shown.out.splitlines() if line.startswith(f"greet[{number}]")]
        assert lines == [f"greet[{number}] | {word} from {said}" for word in ("hello", "bye")]
    assert len(shown.out.splitlines()) == 4
    assert shown.err.count("100%") == 2


async def test_pool_output_is_shown_on_request(options, shown, tmp_path):
    (tmp_path / "go").touch()

    def run():
        with BatchPoolExecutor(**options, output=True) as pool:
            pool.submit(greet, str(tmp_path / "go"), 1).result()
        with BatchPoolExecutor(**options) as pool:
            pool.submit(greet, str(tmp_path / "go"), 3).result()

    await asyncio.to_thread(run)
    assert shown.look().out == "greet | hello from 1\ngreet | bye from 1\n"
    assert "of 3" not in shown.err
