"""``farcall replay --image``: a failed call in a container of the job's image.

Starts containers, because the call runs as the image's user.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import run_installed

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
