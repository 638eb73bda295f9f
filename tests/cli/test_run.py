"""``farcall run``.

Starts the local AWS emulator, because the command waits for a job and shows its output.
"""

import asyncio
import json
import pickle
import signal
import subprocess

import boto3
import pytest

from tests.support.commands import FARCALL
from tests.support.patience import PATIENCE_S

WORK = '''
import sys, time
from farcall import BatchExecutor

print("while it is imported")
executor = BatchExecutor(vcpu=3)

def add(x: int, y: int = 2, *, note="", fail: bool = False):
    """Add two numbers."""
    print("to stdout")
    print("to stderr", file=sys.stderr)
    if fail:
        raise LookupError("on purpose")
    return {"sum": x + y, "note": note}

def sleep(seconds: float):
    print("it begins", flush=True)
    time.sleep(seconds)

@executor.task
def task(x: int):
    return x
'''


@pytest.fixture(autouse=True)
def _work(aws, tmp_path, monkeypatch):
    (tmp_path / "work.py").write_text(WORK)
    for name, value in {"VCPU": 1, "MEMORY": 1, "RETRY_ATTEMPTS": 1, "LINGER_S": 0.02}.items():
        monkeypatch.setenv(f"FARCALL_{name}", str(value))


@pytest.mark.core
async def test_output_is_shown_before_result(farcall_command):
    done = await farcall_command("run", "work:add", 40, "--note", "[1]")

    assert 0 == done.returncode, done.stderr
    # The job imports the module, which prints a line, too.
    assert "while it is imported\nto stdout\n{'sum': 42, 'note': [1]}\n" == done.stdout
    told = done.stderr.splitlines()
    assert "to stderr" in told
    assert "while it is imported" in told
    assert any(line.startswith("job ") for line in told)


async def test_json_result_is_alone_on_stdout(farcall_command):
    done = await farcall_command("run", "--json", "work.py:add", "40", "--y=-3")

    assert {"sum": 37, "note": ""} == json.loads(done.stdout)
    assert "to stdout" in done.stderr.splitlines()


@pytest.mark.core
async def test_failure_shows_remote_traceback(farcall_command):
    done = await farcall_command("run", "work:add", "1", "--fail")

    assert 1 == done.returncode
    assert 'raise LookupError("on purpose")' in done.stderr
    assert "while it is imported\nto stdout\n" == done.stdout


async def test_output_saves_pickle_and_deletes_object(farcall_command, tmp_path):
    done = await farcall_command(
        "run",
        "--workflow",
        "of-output",
        "-o",
        "prefix=run-output",
        "--output",
        "value",
        "work:add",
        1,
    )

    assert 0 == done.returncode, done.stderr
    assert "" == done.stdout
    assert {"sum": 3, "note": ""} == pickle.loads((tmp_path / "value").read_bytes())
    left = boto3.client("s3").list_objects_v2(Bucket="farcall-local", Prefix="run-output/")
    assert not [o["Key"] for o in left.get("Contents", []) if "/outcomes/" in o["Key"]]


async def test_detach_prints_only_job_id(farcall_command):
    left = await farcall_command("run", "--detach", "work:add", "5")
    job_id = left.stdout.strip()
    assert f"{job_id}\n" == left.stdout, left.stderr

    (job,) = boto3.client("batch").describe_jobs(jobs=[job_id])["jobs"]
    environment = {e["name"]: e["value"] for e in job["container"]["environment"]}
    assert "work" == environment["FARCALL_WORKFLOW"]
    done = await farcall_command("result", job_id)
    assert "{'sum': 7, 'note': ''}\n" == done.stdout


async def test_ctrl_c_cancels_job():
    running = await asyncio.create_subprocess_exec(
        FARCALL,
        "run",
        "work:sleep",
        "600",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    for line in (b"while it is imported\n", b"it begins\n"):
        assert line == await asyncio.wait_for(running.stdout.readline(), PATIENCE_S)

    running.send_signal(signal.SIGINT)
    _, err = await asyncio.wait_for(running.communicate(), PATIENCE_S)

    assert 130 == running.returncode
    job_id = next(w[1] for w in map(str.split, err.decode().splitlines()) if w[0] == "job")
    (job,) = boto3.client("batch").describe_jobs(jobs=[job_id])["jobs"]
    assert job["isTerminated"]


async def test_function_help_has_docstring_and_parameters(farcall_command):
    done = await farcall_command("run", "work:add", "--help")

    assert 0 == done.returncode, done.stderr
    assert "Usage: farcall run work:add [OPTIONS] X" in done.stdout
    for said in ("Add two numbers.", "--y int", "--note JSON or text", "--fail / --no-fail"):
        assert said in done.stdout
