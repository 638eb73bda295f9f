"""``farcall wait``.

Starts the local AWS emulator and the command as a process, because it ends when jobs do.
"""

import signal
import time
from pathlib import Path

import pytest

from tests.cli.started import end, line_of, start

UNKNOWN_ID = "00000000-0000-0000-0000-000000000000"


def hold(gate, fails=False):
    while not Path(gate).exists():
        time.sleep(0.02)
    if fails:
        raise ValueError("on purpose")


@pytest.fixture
async def hold_jobs(executor, tmp_path):
    """Submit jobs that run until their gate file exists; the teardown creates all gates."""
    gates = []

    async def submit(**how):
        gates.append(tmp_path / f"gate{len(gates)}")
        return await executor.submit(hold, str(gates[-1]), **how), gates[-1]

    yield submit
    for gate in gates:
        gate.touch()


async def test_finished_jobs_are_printed_immediately(hold_jobs, executor):
    (first, one), (second, two) = [await hold_jobs() for _ in range(2)]
    started = start("wait", first.id, second.id[:8])
    two.touch()
    assert (await line_of(started)).startswith(f"{second.id}  Succeeded since 20")
    one.touch()
    assert (await line_of(started)).startswith(f"{first.id}  Succeeded since 20")
    assert await end(started) == (0, "", "")


async def test_any_and_timeout_limit_the_wait(hold_jobs, farcall_command):
    (first, _), (second, gate) = [await hold_jobs() for _ in range(2)]
    gate.touch()
    done = await farcall_command("wait", first.id, second.id, "--any")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{second.id}  Succeeded")
    done = await farcall_command("wait", first.id, "--timeout", "0.2s")
    assert (done.returncode, done.stdout) == (124, "")
    assert (
        done.stderr
        == f"1 job ({first.id}) had not finished when the timeout expired. The jobs continue.\n"
    )
    assert not (await first.status()).is_final
    done = await farcall_command("wait", second.id, "--timeout", "0")  # has ended already
    assert (done.returncode, done.stderr) == (0, "")
    done = await farcall_command("wait", first.id, second.id, "--any", "--timeout", "0")
    assert (done.returncode, done.stderr) == (0, "")
    done = await farcall_command("wait", first.id, "--timeout", "soon")
    assert done.returncode == 2
    assert "'soon' is not a valid duration: use units, such as 90s" in done.stderr


async def test_exit_code_reports_failure(hold_jobs, executor, farcall_command):
    failing, gate = await hold_jobs(fails=True)
    gate.touch()
    swept = await executor.task(str).map(range(2))
    assert swept == ["0", "1"]
    await failing.wait()
    done = await farcall_command("wait", "hold")
    assert done.returncode == 1
    assert done.stderr.startswith(f"hold: job {failing.id} (hold-")
    assert done.stdout.startswith(f"{failing.id}  Failed since 20")
    assert "exit code 1" in done.stdout
    done = await farcall_command("wait", failing.id, UNKNOWN_ID, "no-such-name")
    assert done.returncode == 3
    assert f"Batch does not know job {UNKNOWN_ID}" in done.stderr
    assert "begins with 'no-such-name'" in done.stderr
    assert done.stdout.startswith(failing.id)


async def test_ctrl_c_leaves_jobs_running(hold_jobs):
    (first, _), (second, gate) = [await hold_jobs() for _ in range(2)]
    started = start("wait", first.id, second.id)
    gate.touch()
    assert (await line_of(started)).startswith(second.id)
    started.send_signal(signal.SIGINT)
    code, out, err = await end(started)
    assert (code, out, err.strip()) == (130, "", "")
    assert not (await first.status()).is_final
