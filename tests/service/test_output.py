"""Output capture.

Starts the local AWS emulator, because descriptors of a real process are captured.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.core
async def test_output_of_all_sources_is_captured(executor):
    def work() -> None:
        import ctypes

        print("from python", flush=True)
        libc = ctypes.CDLL(None)
        libc.puts(b"from c")
        libc.fflush(None)
        os.write(1, b"from a descriptor\n")
        subprocess.run([sys.executable, "-c", "print('from a subprocess')"], check=True)
        print("an error", file=sys.stderr)

    job = await executor.submit(work)
    await job.result()

    expected = ["from python", "from c", "from a descriptor", "from a subprocess"]
    assert expected == (await job.stdout()).splitlines()
    assert await job.stderr() == "an error\n"
