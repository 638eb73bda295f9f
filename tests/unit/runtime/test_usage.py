"""What a task uses while it runs: what is measured, and how often the bucket is asked."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest

from farcall_runtime import memory, usage
from farcall_runtime.contract import Location
from farcall_runtime.followed import Mark
from farcall_runtime.usage import UsageReport

WHERE = Location("bucket", "v1/run", "bundle")
KEY = b"k" * 32


# --- what is measured ---------------------------------------------------------------------------

SPENDS = """
import subprocess, sys, time
block = bytearray(b"x") * (64 << 20)
until = time.process_time() + 0.2
while time.process_time() < until:
    pass
child = None
if len(sys.argv) == 1:
    child = subprocess.Popen([sys.executable, sys.argv[0], "child"], stdout=subprocess.PIPE)
    child.stdout.readline()
print("there", flush=True)
sys.stdin.read()  # until it is killed
"""

# In a process of its own: that of the tests may have servers as children.
SUPERVISES = """
import os, signal, subprocess, sys, time
from farcall_runtime import usage
from farcall_runtime.contract import Location
from farcall_runtime.followed import Mark

where = Location("bucket", "v1/run", "bundle")
task = subprocess.Popen(
    [sys.executable, sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE
)
task.stdout.readline()
pids = usage.descendants(os.getpid())
report = usage.UsageReport(where, 3, 1, b"k" * 32, Mark(where, 3), task.pid, time.monotonic())
said = [report.measure()]
os.kill(max(pids, key=lambda pid: pid != task.pid), signal.SIGKILL)
while report.measure()["memory_bytes"] > 128 << 20:
    time.sleep(0.03)
said.append(report.measure())
task.kill()
task.wait()
print([len(pids), *said])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells it below /proc")
def test_all_processes_of_a_task_are_measured(tmp_path):
    script = tmp_path / "spends.py"
    script.write_text(SPENDS)
    done = subprocess.run(
        [sys.executable, "-c", SUPERVISES, str(script)], capture_output=True, text=True, check=True
    )
    count, before, after = ast.literal_eval(done.stdout)
    assert count == 2
    assert before["memory_bytes"] >= 128 << 20
    assert before["peak_memory_bytes"] >= before["memory_bytes"]
    assert before["cpu_s"] >= 0.4
    assert after["memory_bytes"] < 128 << 20
    assert after["peak_memory_bytes"] >= before["peak_memory_bytes"]


def test_a_process_that_is_gone_is_none():
    assert usage.descendants(2**22 + 1) == []
    assert usage._read(2**22 + 1) is None
    assert usage._peak_of(2**22 + 1) == 0


@pytest.mark.parametrize(
    ("files", "in_use"),
    [
        ({"memory.current": "700\n", "memory.stat": "anon 5\ninactive_file 300\n"}, 400),
        ({"memory.current": "700\n"}, 700),
        ({"memory.current": "7\n", "memory.stat": "inactive_file 9\n"}, 0),
        (
            {
                "memory/memory.usage_in_bytes": "700\n",
                "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 200\n",
            },
            500,
        ),
        ({"memory.current": "many\n"}, None),
        ({}, None),
    ],
)
def test_what_a_container_has_in_use_is_without_files(files, in_use, tmp_path, monkeypatch):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    places = [
        tuple(path.replace(memory._ROOT, str(tmp_path)) for path in each)
        for each in memory._IN_USE
    ]
    monkeypatch.setattr(memory, "_IN_USE", places)
    assert memory.in_use_bytes() == in_use


def test_a_container_s_own_group_tells_its_memory(monkeypatch):
    report = UsageReport(WHERE, 3, 1, KEY, Mark(WHERE, 3), os.getpid(), 0.0)
    monkeypatch.setattr(usage, "descendants", lambda _: [os.getpid()])
    monkeypatch.setattr(memory, "in_use_bytes", lambda: 7)
    monkeypatch.setattr(memory, "limit_bytes", lambda: 9)
    monkeypatch.setattr(usage.os, "getppid", lambda: 1)
    said = report.measure()
    assert (said["memory_bytes"], said["memory_limit_bytes"]) == (7, 9)
