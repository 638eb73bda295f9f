"""S3 error codes during transfers.

Starts the local AWS emulator and a fault proxy. The tests are slow, because they transfer 40 MiB
and wait for retries.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
import zlib

import boto3
import psutil
import pytest

import farcall_local
from farcall import ServiceError
from tests.support.patience import until_async
from tests.support.proxy import Fault

pytestmark = pytest.mark.slow  # one fault after the other

#: Faults of an upload's requests by method, in order. POST begins and completes an upload.
UPLOADS: dict[str, dict[str, list[Fault]]] = {
    "a part": {"PUT": ["", (400, "RequestTimeout"), "", (409, "OperationAborted")]},
    "a part's connection": {"PUT": ["lost", "reset", "truncated", (503, "SlowDown")]},
    "its end": {"POST": ["", (200, "InternalError"), (409, "ConditionalRequestConflict")]},
}


def large(kind: str) -> bytes | list[bytes]:
    """Return 40 MiB, either in the bundle or as shared data."""
    data = random.Random(1).randbytes(40 << 20)
    half = 1 << 19
    return data if kind == "data" else [data[at : at + half] for at in range(0, len(data), half)]


def checked(data: bytes | list[bytes]) -> int:
    return zlib.crc32(data if isinstance(data, bytes) else b"".join(data))


@pytest.fixture
def prefix():
    """A prefix that no other test uses."""
    return f"codes-{uuid.uuid4().hex}"


def uploads(aws: farcall_local.LocalAWS, prefix: str) -> list[str]:
    """Return the keys of unfinished uploads below a prefix."""
    name = aws.environment["FARCALL_S3_BUCKET_NAME"]
    with contextlib.closing(boto3.client("s3", endpoint_url=aws.endpoint_url)) as s3:
        found = s3.list_multipart_uploads(Bucket=name, Prefix=f"{prefix}/")
    return [each["Key"] for each in found.get("Uploads", [])]


def connected() -> set[int]:
    """Return the ports that this process is connected to."""
    return {each.raddr.port for each in psutil.Process().net_connections("tcp") if each.raddr}


@pytest.mark.parametrize(
    ("what", "kind"),
    [*((what, "bundles") for what in UPLOADS), ("a part", "data")],
)
async def test_transient_faults_do_not_break_upload(what, kind, aws, proxy, prefix, make_executor):
    data = large(kind)
    for method, faults in UPLOADS[what].items():
        proxy.faults[f"s3 {method} {kind}"] += faults
    async with make_executor(endpoint_url=proxy.url, prefix=prefix) as executor:
        assert await executor.task(checked)(data) == checked(data)

    assert not any(proxy.faults.values())
    assert uploads(aws, prefix) == []


@pytest.mark.parametrize(
    ("method", "operation", "kind"),
    [("PUT", "UploadPart", "bundles"), ("POST", "CompleteMultipartUpload", "data")],
)
async def test_rejected_upload_is_aborted(
    method, operation, kind, aws, proxy, prefix, make_executor
):
    proxy.faults[f"s3 {method} {kind}"] += ["", (400, "InvalidPart")]
    async with make_executor(endpoint_url=proxy.url, prefix=prefix) as executor:
        with pytest.raises(
            ServiceError, match=rf"{operation} of s3://.*\(InvalidPart\)"
        ) as caught:
            await executor.task(len)(large(kind))

    assert (caught.value.operation, caught.value.code) == (operation, "InvalidPart")
    assert uploads(aws, prefix) == []
    assert proxy.counts["batch submitjob"] == 0


@pytest.mark.parametrize("kind", ["bundles"])
async def test_cancelled_upload_is_aborted(kind, aws, proxy, prefix, make_executor):
    proxy.faults[f"s3 PUT {kind}"] += ["", "hang", "hang"]
    async with make_executor(endpoint_url=proxy.url, prefix=prefix) as executor:
        asked = asyncio.ensure_future(executor.task(len)(large(kind)))
        await until_async(lambda: proxy.counts[f"s3 PUT {kind}"] >= 3)
        assert len(uploads(aws, prefix)) == 1
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        await until_async(lambda: uploads(aws, prefix) == [])
        proxy.refuse()  # otherwise hanging requests would stay open as long as this loop
        await until_async(lambda: proxy.port not in connected())

    assert proxy.counts["batch submitjob"] == 0
