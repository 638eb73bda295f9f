"""Fetching output only on request.

Starts the local AWS emulator and a counting proxy, because large output is stored in
separate objects.
"""

from __future__ import annotations

import asyncio
import sys

import boto3
import pytest

MIB = 1024 * 1024
LINE = "x" * 1023 + "\n"
MUCH = 20 * MIB
"""Size of several chunks in bytes; a chunk has at most 8 MiB."""


@pytest.fixture
def left(aws):
    """Return a function that returns the keys of output below a prefix."""
    s3 = boto3.client("s3", endpoint_url=aws.endpoint_url)

    def keys(prefix: str) -> list[str]:
        bucket = aws.environment["FARCALL_S3_BUCKET_NAME"]
        found = s3.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/").get("Contents", [])
        return [each["Key"] for each in found if "/streams/" in each["Key"]]

    return keys


def speak(size: int) -> int:
    for _ in range(size // len(LINE)):
        sys.stdout.write(LINE)
    print("the end", file=sys.stderr)
    return size


def fail(size: int) -> None:
    speak(size)
    raise ValueError("after all that")


async def test_result_fetches_and_leaves_no_output(proxy, make_executor, left):
    async with make_executor(endpoint_url=proxy.url, prefix="unasked/value") as executor:
        task = executor.task(speak)
        assert await task(MUCH) == MUCH
        assert await task.map([MUCH, 1024]) == [MUCH, 1024]
    assert proxy.counts["s3 GET streams"] == 0
    assert left("unasked/value") == []


async def test_output_is_available_after_result(proxy, make_executor, left):
    async with make_executor(endpoint_url=proxy.url, prefix="unasked/handle") as executor:
        job = await executor.submit(speak, MUCH)
        assert await job.result() == MUCH
        assert proxy.counts["s3 GET streams"] == 0

        assert await job.stdout() == LINE * (MUCH // len(LINE))
        assert await job.stderr() == "the end\n"
        lines = [line async for line in job.logs()]
        assert lines.count(LINE[:-1]) == MUCH // len(LINE)
        assert lines[-1] == "the end"
        (result,) = await job.results()
        assert (len(result.stdout), result.stderr, result.value) == (MUCH, "the end\n", MUCH)

        assert len(await asyncio.to_thread(left, "unasked/handle")) >= 2
    assert await asyncio.to_thread(left, "unasked/handle") == []


async def test_error_has_end_of_output(proxy, make_executor):
    async with make_executor(endpoint_url=proxy.url) as executor:
        job = await executor.submit(fail, MUCH)
        error = await job.exception()
        assert isinstance(error, ValueError)
        assert proxy.counts["s3 GET streams"] <= 1
        assert await job.stdout() == LINE * (MUCH // len(LINE))

        def die(size: int) -> None:
            import os

            speak(size)
            sys.stdout.flush()
            os._exit(3)

        error = await (await executor.submit(die, MUCH)).exception()
        assert error is not None
        told = error.stdout  # type: ignore[attr-defined]
        assert told.startswith("[farcall: ")
        assert "bytes before this are omitted]" in told
        assert told.endswith(LINE)
        assert len(told) <= MIB + 200
        assert error.stderr == "the end\n"  # type: ignore[attr-defined]
