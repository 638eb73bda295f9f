"""``farcall local``.

Starts the command as a process, because it serves the local AWS emulator to another one.
"""

import os
import pty
import signal
import subprocess
import sys

from tests.support.commands import FARCALL, run_installed


def test_script_runs_on_local_emulator(tmp_path):
    script = tmp_path / "workflow.py"
    script.write_text(
        "import asyncio, farcall\n"
        "executor = farcall.BatchExecutor(vcpu=1)\n"
        "@executor.task\n"
        "def double(x):\n"
        "    return 2 * x\n"
        "async def main():\n"
        "    async with executor:\n"
        "        print(await double(21))\n"
        "asyncio.run(main())\n"
        "raise SystemExit(3)\n"
    )

    done = run_installed("local", "--", sys.executable, str(script))

    assert "42\n" == done.stdout, done.stderr
    assert 3 == done.returncode


def test_terminal_output_explains_the_exports():
    ours, its = pty.openpty()
    command = [FARCALL, "local"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=its, stderr=its) as process:
        os.close(its)
        text = b""
        while b"on a new emulator" not in text:
            text += os.read(ours, 65_536)  # raises OSError if the process has ended
        process.send_signal(signal.SIGINT)
        assert 0 == process.wait(60)
    os.close(ours)
    exports, _, told = text.decode().partition("\r\n\r\n")
    assert all(line.startswith("export ") for line in exports.splitlines())
    assert "is running on http://127.0.0.1:" in told
    assert "press Ctrl-C to stop" in told
