"""``farcall replay --image``: a failed call again, in a container of the job's image."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from farcall import BatchExecutor
from tests.image.conftest import Docker
from tests.support import terminal
from tests.support.commands import FARCALL, run_installed

LARGE = 2 * 1024 * 1024
"""Bytes of what is stored by itself, as values are that tasks share."""


@pytest.fixture
def strict_umask():
    """What is made is for its user alone, as many have it."""
    before = os.umask(0o077)
    yield
    os.umask(before)


def found_here() -> dict[str, Any]:
    return {
        "user": os.getuid(),
        "here": Path.cwd().as_posix(),
        "index": os.environ.get("AWS_BATCH_JOB_ARRAY_INDEX"),
        "job": os.environ.get("AWS_BATCH_JOB_ID"),
        "mode": os.environ.get("MODE"),
        "python": sys.executable,
        "keys": sorted(name for name in os.environ if "SECRET" in name or "TOKEN" in name),
    }


def parse(text: str, number: int, large: bytes) -> Any:
    wanted = json.loads(text)
    return {"wanted": wanted, "number": number, "size": len(large), **found_here()}


@pytest.mark.usefixtures("module_travels", "strict_umask")
async def test_a_call_runs_again_as_the_images_user_with_the_jobs_variables(
    make_executor,
) -> None:
    """The first failed child fails once more, and one that had returned returns."""
    large = os.urandom(LARGE)
    variables = [{"name": "MODE", "value": "cautious"}]
    async with make_executor({"environment": variables}) as executor:
        calls = [("0", 0, large), ("{", 1, large), ("2", 2, large)]
        sweep = executor.task(parse).starmap(calls, return_exceptions=True)
        values = await sweep
        (array,) = sweep.job_ids
        assert isinstance(values[1], json.JSONDecodeError)
        assert values[2]["size"] == LARGE
        assert values[2]["mode"] == "cautious"

        failed = run_installed("replay", array, "--image", "--yes")
        returned = run_installed("replay", f"{array}:2", "--image", "--yes")

    told, _, trace = failed.stderr.partition("farcall: the call failed after ")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert f"job {array}:1 (parse-" in told
    assert "Its code runs here in image " in told
    assert "in parse" in trace
    assert trace.rstrip().splitlines()[-1].startswith("json.decoder.JSONDecodeError: ")
    assert returned.returncode == 0, returned.stderr
    assert returned.stdout == f"{ {**values[2], 'keys': []}!r}\n"  # it has no credentials


@pytest.mark.usefixtures("module_travels", "strict_umask")
async def test_a_job_of_the_stock_image_has_the_runtime_that_it_had(
    make_executor, base_image: str
) -> None:
    """Nothing of farcall's is in the image; as on Batch it does not run as root."""
    large = os.urandom(LARGE)
    stock = {"container_image_uri": "", "stock_image_uri": base_image}
    async with make_executor(**stock) as executor:
        job = await executor.submit(parse, "{", 7, large)
        assert isinstance(await job.exception(), json.JSONDecodeError)
        fine = await executor.submit(parse, "5", 7, large)
        value = await fine.result()

        failed = run_installed("replay", job.id, "--image", "--yes")
        returned = run_installed("replay", fine.id, "--image", "--yes")

    trace = failed.stderr.partition("farcall: the call failed after ")[2]
    assert (failed.returncode, failed.stdout) == (1, ""), failed.stderr
    assert trace.rstrip().splitlines()[-1].startswith("json.decoder.JSONDecodeError: ")
    assert value["user"] == 10001
    assert returned.stdout == f"{ {**value, 'keys': []}!r}\n", returned.stderr


@pytest.mark.usefixtures("module_travels")
async def test_the_debugger_stops_in_the_users_own_frame(executor: BatchExecutor) -> None:
    """On a terminal, which is the container's then."""
    job = await executor.submit(parse, "{", 7, b"")
    await job.exception()

    shown = terminal.run(
        [FARCALL, "replay", job.id, "--image", "--pdb"],
        answer="y\np (text, number + 1)\np os.getuid()\nq\n",
    )

    assert shown.returncode == 1, shown.text
    assert "Run it? [y/N]" in shown.text
    assert "('{', 8)" in shown.text
    assert "\n10001\n" in shown.text


def wait_for_ever() -> None:
    print("it waits", flush=True)
    time.sleep(3600)  # until the test ends it


@pytest.mark.usefixtures("module_travels")
async def test_ctrl_c_is_the_calls(executor: BatchExecutor) -> None:
    """That its container is gone, the end of all tests looks at."""
    job = await executor.submit(wait_for_ever)
    await job.cancel()
    await job.exception()

    process = await asyncio.create_subprocess_exec(
        *(FARCALL, "replay", job.id, "--image", "--yes"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"it waits\n"
    os.killpg(process.pid, signal.SIGINT)
    _, err = await process.communicate()

    assert process.returncode == 1
    assert err.rstrip().endswith(b"KeyboardInterrupt")


@pytest.mark.usefixtures("module_travels")
async def test_who_ends_it_ends_its_container(
    executor: BatchExecutor, docker: Docker, tmp_path: Path
) -> None:
    """A container's first process takes no signal that it has no handler for."""
    job = await executor.submit(wait_for_ever)
    await job.cancel()
    await job.exception()

    process = await asyncio.create_subprocess_exec(
        *(FARCALL, "replay", job.id, "--image", "--yes"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"it waits\n"
    process.terminate()
    _, err = await process.communicate()

    assert process.returncode == 128 + signal.SIGTERM, err
    assert not docker("ps", "--all", "--quiet", "--filter", "name=farcall-replay-")
    assert not os.listdir(tmp_path)  # noqa: PTH208
