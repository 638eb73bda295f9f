"""Drives PyPI's covalent-awsbatch-plugin directly; runs in a venv of its own, without farcall.

``python -m benchmarks.peer_client COUNT`` awaits so many ``AWSBatchExecutor.run`` at once and
prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import urllib.request
from typing import Any

import covalent  # noqa: F401  # reads the configuration, with the plugin's section
from covalent_awsbatch_plugin.awsbatch import AWSBatchExecutor

from benchmarks.meter import Meter


def double(x: int) -> int:
    """The trivial task."""
    return 2 * x


class Alone(AWSBatchExecutor):
    """The peer without a dispatcher to talk to, whose calls cost it nothing here."""

    async def get_cancel_requested(self) -> bool:
        """Say that nobody wants a cancel."""
        return False

    async def set_job_handle(self, handle: Any) -> None:
        """Forget the handle."""


async def _one(number: int, folder: str) -> int:
    executor = Alone(
        region=os.environ["AWS_REGION"],
        s3_bucket_name=os.environ["FARCALL_S3_BUCKET_NAME"],
        queue="benchmark",
        poll_freq=1,
        cache_dir=folder,
    )
    executor._task_stdout, executor._task_stderr = sys.stderr, sys.stderr
    where = {"dispatch_id": f"dispatch{number}", "node_id": 0, "results_dir": folder}
    return int(await executor.run(double, [number], {}, where))


async def _main(count: int) -> dict[str, Any]:
    meter = Meter()
    with tempfile.TemporaryDirectory() as folder:
        values = await asyncio.gather(*(_one(number, folder) for number in range(count)))
    told = meter.told()
    if values != [2 * number for number in range(count)]:
        raise AssertionError("wrong values")
    return told


if __name__ == "__main__":
    url = f"{os.environ['AWS_ENDPOINT_URL']}/_bench/reset"
    urllib.request.urlopen(url, b"{}").close()
    print(json.dumps(asyncio.run(_main(int(sys.argv[1])))))
