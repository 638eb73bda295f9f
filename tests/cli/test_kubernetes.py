"""Commands for jobs on Kubernetes.

Starts the local Kubernetes emulator, because references and terms differ from Batch.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from farcall import BatchExecutor
from tests.support.patience import until_async

pytestmark = pytest.mark.usefixtures("kubernetes", "module_travels")
SMALL = {"vcpu": 1, "memory": 0.25, "retry_attempts": 2, "linger_s": 0.05}


def halve_it(number: int) -> float:
    print("halves", number)
    if number == 3:
        raise ValueError("three")
    return number / 2


async def test_failed_map_is_found_and_retried(farcall_command):
    async with BatchExecutor(**SMALL) as executor:
        found = await asyncio.gather(
            *(executor.task(halve_it)(number) for number in range(4)), return_exceptions=True
        )
    assert found[:3] == [0, 0.5, 1]

    async def ended() -> dict[str, Any] | None:
        listed = json.loads((await farcall_command("list", "--json")).stdout)
        [job] = [each for each in listed if each["function"] == "halve_it" and each["array_size"]]
        return job if job["state"] in ("SUCCEEDED", "FAILED") else None

    job = await until_async(ended)
    assert ("Kubernetes", "FAILED", "") == (job["platform"], job["state"], job["queue"])
    assert job["id"].startswith("halve-it-")

    own = job["id"].rpartition("-")[2]
    for reference in (job["id"], own, own[:5], "halve_it", job["name"]):
        told = json.loads((await farcall_command("describe", "--json", reference)).stdout)
        assert told["job"]["id"] == job["id"], reference
    child = await farcall_command("describe", f"{own}:3")
    assert 0 == child.returncode, child.stderr
    assert "the function raised ValueError: three" in child.stdout
    assert re.search(r"^Namespace +default$", child.stdout, re.MULTILINE)
    assert re.search(rf"^Pod +{job['id']}-3-", child.stdout, re.MULTILINE)
    assert "Batch" not in child.stdout + child.stderr
    whole = await farcall_command("describe", job["id"])
    assert "Kubernetes reason  " in whole.stdout
    logs = await farcall_command("logs", f"{job['id']}:2")
    assert "halves 2\n" in logs.stdout

    again = await farcall_command("retry", "--yes", job["id"])
    assert "halve_it" in again.stdout + again.stderr, again
    assert (await farcall_command("deploy")).stderr.startswith("farcall: backend is 'kubernetes'")
