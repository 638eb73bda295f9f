"""Calls of recovered tasks, and untrusted objects in the bucket.

Starts the local AWS emulator, because recovery reads what another session stored.
"""

from __future__ import annotations

import asyncio
import builtins
import os
import sys
from pathlib import Path

import boto3
import pytest

from farcall import FarcallError, IntegrityError
from farcall.engine.session import session_for
from farcall_runtime import envelope
from tests.support.patience import until_async
from tests.support.proxy import Proxy
from tests.support.tasks import wait_for


def late(folder):
    Path(folder, "begun").touch()
    return wait_for(f"{folder}/go", "done")


def double(x):
    return 2 * x


class Moved:
    """An argument whose class is found only where it was pickled."""

    def __reduce__(self):
        return _unknown, ()


def _unknown():
    if os.environ.get("FARCALL_TEST_HOME") == "here":
        raise getattr(builtins, os.environ["FARCALL_TEST_ERROR"])("nobody knows it here")
    return Moved()


@pytest.fixture
def bucket(aws):
    return boto3.resource("s3").Bucket(aws.environment["FARCALL_S3_BUCKET_NAME"])


@pytest.fixture
def keeping(make_executor):
    return make_executor(keep_artifacts=True, linger_s=0.3)


def the_bundle(bucket, run):
    (found,) = bucket.objects.filter(Prefix=f"farcall/v1/{run}/bundles/")
    return found.Object()


async def test_each_task_tells_its_own_call(keeping):
    async with keeping as executor:
        small = [executor.submit(double, number) for number in range(130)]
        large = executor.submit(len, os.urandom(20_000_000))  # more than the first look brings
        jobs = await asyncio.gather(*small, large)
        recovered = await executor.recover(await executor.run_name())

        calls = await asyncio.gather(*(job.calls() for job in recovered.jobs))

        by_id = dict(zip([job.id for job in recovered.jobs], calls, strict=True))
        assert [by_id[job.id] for job in jobs[:-1]] == [[((n,), {})] for n in range(130)]
        (((data,), _),) = by_id[jobs[-1].id]
        assert len(data) == 20_000_000
        assert await jobs[-1].result() == 20_000_000
        assert {job.name.rpartition("-")[0] for job in recovered.jobs} == {"double", "len"}
        for job in jobs:
            await job.wait()


# --- a bucket that others write to --------------------------------------------------------------


def truncated(data):
    return data[:-1]


def turned(data):
    return data[:20] + bytes([data[20] ^ 1]) + data[21:]


def foreign(_data):
    digest = b"\0" * 32
    pages, root = envelope.seal_index({"queue": "x"}, [(0, digest)], [(0, 0, digest)])
    return envelope.bundle_start() + pages + root


SPOILED = [truncated, turned, foreign, lambda _: b"", lambda _: b"x" * 100_000]


@pytest.mark.parametrize("spoil", SPOILED, ids=range(len(SPOILED)))
async def test_a_bundle_that_was_changed_is_refused_and_its_job_found(
    keeping, bucket, tmp_path, spoil
):
    async with keeping as executor:
        job = await executor.submit(late, str(tmp_path))
        await until_async((tmp_path / "begun").exists)
        stored = the_bundle(bucket, await executor.run_name())
        stored.put(Body=spoil(stored.get()["Body"].read()))
        (tmp_path / "go").touch()

        (found,) = (await executor.recover(await executor.run_name())).jobs

        with pytest.raises(IntegrityError, match="is not what was submitted"):
            await found.calls()
        assert found.id == job.id
        await job.wait()


async def test_the_python_that_pickled_is_compared_before_anything_is_unpickled(
    keeping, monkeypatch
):
    async with keeping as executor:
        job = await executor.submit(double, 1)
        await job.wait()
        monkeypatch.setattr(sys, "version_info", (3, 9, 0, "final", 0))
        with pytest.raises(FarcallError, match=r"pickled by Python .*, and this is Python 3\.9"):
            await job.calls()


@pytest.mark.timing(largest_outcome_bytes=1 << 20)
async def test_what_strangers_put_in_a_receipt_s_place_is_passed_by(
    aws, make_executor, bucket, caplog
):

    def rule(request):
        is_cold = request.method == "GET" and request.path.endswith(".delivered/2")
        return (403, "InvalidObjectState") if is_cold else ""

    with Proxy(aws.endpoint_url) as proxy:
        proxy.rule = rule
        async with make_executor(endpoint_url=proxy.url, keep_artifacts=True) as executor:
            job = await executor.submit(double, 21)
            await job.wait()
            bundle = the_bundle(bucket, (await session_for(executor.settings)).run).key
            for number, body in enumerate((bytes(2 << 20), b"x", b"cold")):
                bucket.put_object(Key=f"{bundle}.delivered/{number}", Body=body)
            recovered = await executor.recover((await session_for(executor.settings)).run)
            assert [await each.result() for each in recovered.jobs] == [42]
    assert recovered.delivered == 0
    assert ".delivered/2 failed" in caplog.text
