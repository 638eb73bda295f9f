"""Foreign keys in the bucket, next to the keys of a job.

Starts the local AWS emulator, because S3 listings with odd keys must not hide farcall's objects.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import boto3
import pytest

import farcall_local
from farcall_runtime.contract import Location
from tests.service.places import place
from tests.support.patience import until_async

ODD = ["/x", "a//b", "./x", "../x", "a/../b", ".", "..", "a\x01b", "\x7f"]
ODD += ["0/", "0//", "x/", "\u0663"]
"""Each key of the first line makes obstore's listing fail."""


class Vandal:
    """A user that writes odd keys everywhere in the bucket."""

    def __init__(self, aws: farcall_local.LocalAWS) -> None:
        self._bucket = aws.environment["FARCALL_S3_BUCKET_NAME"]
        self._endpoint = aws.endpoint_url
        self._s3 = boto3.client("s3", endpoint_url=aws.endpoint_url)

    def put(self, *keys: str) -> None:
        for key in keys:
            self._s3.put_object(Bucket=self._bucket, Key=key, Body=b"rubbish")

    def spoil(self, where: Location) -> None:
        """Write odd keys below every prefix that is listed for a job."""
        runs = where.root.rpartition("/")[0]
        below = [f"{runs}/", f"{where.root}/bundles/", f"{where.root}/outcomes/"]
        below += [f"{where.root}/outcomes/{where.bundle}/", where.attempts_prefix]
        below += [f"{where.attempts_prefix}0/", where.streams_prefix(0)]
        below += [where.stream_prefix(0, 1, "stdout"), where.stream_prefix(0, 1, "stderr")]
        self.put(*(f"{prefix}{odd}" for prefix in below for odd in ODD))


@pytest.fixture
def vandal(aws):
    return Vandal(aws)


def speak(path: str) -> str:
    import time

    print("begun", flush=True)
    while not Path(path).exists():
        time.sleep(0.02)
    print("ended")
    return "value"


async def test_foreign_keys_do_not_disturb_job(vandal, make_executor, tmp_path):
    go = tmp_path / "go"
    async with make_executor(prefix="odd/one") as executor:
        job = await executor.submit(speak, str(go))
        where = await place(job)
        await asyncio.to_thread(vandal.spoil, where)
        lines = []

        async def follow() -> None:
            async for line in job.logs(follow=True):
                lines.append(line)

        following = asyncio.ensure_future(follow())
        await until_async(lambda: lines == ["begun"])
        go.touch()

        await following
        assert await executor.attach(job.id).stdout() == "begun\nended\n"
        assert await job.result() == "value"
        assert lines == ["begun", "ended"]
