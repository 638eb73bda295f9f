from __future__ import annotations

import subprocess
import sys

_FORK = """
import os, signal, time
from farcall_runtime import task

os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
task.take_signals()
pid = os.fork()
if not pid:
    time.sleep(20)  # reached only if the signal was lost; the exit code then says so
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
os.kill(os.getpid(), signal.SIGTERM)
print(task.is_stopping())
"""


def test_early_sigterm_ends_forked_process():
    """`Pool` terminates processes that it has just started."""
    done = subprocess.run(
        [sys.executable, "-c", _FORK], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["-15", "True"]
