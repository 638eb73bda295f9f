"""Calls of recovered tasks, and untrusted objects in the bucket.

Starts the local AWS emulator, because recovery reads what another session stored.
"""

from __future__ import annotations

import boto3
import pytest

from farcall.engine.session import session_for
from tests.support.proxy import Proxy


def double(x):
    return 2 * x


@pytest.fixture
def bucket(aws):
    return boto3.resource("s3").Bucket(aws.environment["FARCALL_S3_BUCKET_NAME"])


def the_bundle(bucket, run):
    (found,) = bucket.objects.filter(Prefix=f"farcall/v1/{run}/bundles/")
    return found.Object()


# --- shared bucket ------------------------------------------------------------------------------


@pytest.mark.timing(largest_outcome_bytes=1 << 20)
async def test_foreign_receipts_are_ignored(aws, make_executor, bucket, caplog):

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
