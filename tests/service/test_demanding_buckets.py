"""Buckets that require encryption headers or checksums.

Starts a local AWS emulator and a proxy, because client and container must both send the headers.
"""

from __future__ import annotations

from collections import Counter

import boto3
import pytest

from farcall import BatchExecutor, Settings
from farcall.engine.session import session_for
from tests.support.faults import Fault, Request

pytestmark = pytest.mark.slow

LARGE = 70 * 2**20
"""Size that client and container upload in several requests, in bytes."""


LINE = "text" * 2**19
"""A line that is too long for an outcome."""

KEY = "arn:aws:kms:us-east-1:123456789012:key/0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
ENCRYPTION = "x-amz-server-side-encryption"
KMS_KEY = f"{ENCRYPTION}-aws-kms-key-id"
CHECKSUM = "x-amz-checksum-sha256"


@pytest.fixture(scope="module")
def embedded(own_embedded):
    return own_embedded


@pytest.fixture
def s3(aws):
    client = boto3.client("s3", region_name="us-east-1", endpoint_url=aws.endpoint_url)
    yield client
    client.close()


@pytest.fixture
def through(proxy, monkeypatch):
    """Route the S3 requests of client and container through the proxy; return the options."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.url)
    own = {"name": "AWS_ENDPOINT_URL_S3", "value": proxy.url}
    return {"job_definition_extra": {"containerProperties": {"environment": [own]}}}


def kind_of(request: Request) -> str:
    """Return the kind of object that a request stores; empty if it does not store one."""
    _, _, query = request.path.partition("?")
    if request.service != "s3":
        return ""
    if request.method == "POST" and query.startswith("uploads"):
        return "upload"
    if request.method != "PUT" or "partNumber=" in query:
        return ""
    if "x-amz-copy-source" in request.amz:
        return "copy"
    _, is_shared, kind = request.path.partition("/shared/")
    return kind.split("/")[1] if is_shared else request.operation.split()[-1]


def fill(data: bytes, size: int) -> bytes:
    print(LINE)
    return bytes(size)


def fail(data: bytes) -> None:
    raise ValueError("in a job")


async def use_all_uploads(executor: BatchExecutor) -> None:
    """Store every kind of object: shared values, results, output, errors, markers."""
    job = await executor.submit(fill, bytes(LARGE), LARGE)
    assert len(await job.result()) == LARGE
    assert await job.stdout() == f"{LINE}\n"
    failed = await executor.submit(fail, b"")
    with pytest.raises(ValueError, match="in a job"):
        await failed.result()
    again = await failed.retry()
    with pytest.raises(ValueError, match="in a job"):
        await again.result()


async def copy(settings: Settings) -> None:
    """Copy an object, as is sometimes done with shared values and bundles."""
    session = await session_for(settings)
    store = session.stores.of(settings.s3_bucket_name)
    await store.put("farcall/v1/copied/one", [b"data"])
    await store.copy("farcall/v1/copied/one", "farcall/v1/copied/two")


@pytest.mark.usefixtures("module_travels")
async def test_every_upload_has_encryption_headers(options, through, proxy, s3):
    headers = {ENCRYPTION: "aws:kms", KMS_KEY: KEY}

    def deny_without(request: Request) -> Fault:
        """Deny uploads without the headers."""
        is_denied = kind_of(request) and not headers.items() <= request.amz.items()
        return "denied" if is_denied else ""

    proxy.rule = deny_without
    own = {"s3_encryption": "aws:kms", "s3_kms_key_id": KEY, "prefix": "demanding/aws-kms"}
    async with BatchExecutor(**options, **through, **own, keep_artifacts=True) as executor:
        await use_all_uploads(executor)
        await copy(executor.settings)
    stored = Counter(filter(None, map(kind_of, proxy.seen)))
    kinds = {"copy", "bundles", "outcomes", "streams", "upload", "values"}
    assert kinds <= stored.keys()
    assert not proxy.injected
    bucket = executor.settings.s3_bucket_name
    for each in s3.list_objects_v2(Bucket=bucket, Prefix="demanding/aws-kms/")["Contents"]:
        found = s3.head_object(Bucket=bucket, Key=each["Key"])
        assert (found["ServerSideEncryption"], found["SSEKMSKeyId"]) == ("aws:kms", KEY)


# --- Object Lock --------------------------------------------------------------------------------


@pytest.fixture
def locked(s3):
    """A bucket that keeps object versions for a day; moto also requires a checksum."""
    if "locked" not in [each["Name"] for each in s3.list_buckets()["Buckets"]]:
        s3.create_bucket(Bucket="locked", ObjectLockEnabledForBucket=True)
        rule = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}}
        s3.put_object_lock_configuration(
            Bucket="locked",
            ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": rule},
        )
    return "locked"


@pytest.mark.usefixtures("module_travels")
async def test_locked_bucket_keeps_deleted_versions(locked, through, proxy, s3, options):
    async with BatchExecutor(**options, **through, s3_bucket_name=locked) as executor:
        await use_all_uploads(executor)
    sent = [each for each in proxy.seen if each.service == "s3" and each.method == "PUT"]
    assert not [each for each in sent if CHECKSUM not in each.amz]
    versions = s3.list_object_versions(Bucket=locked)
    kept = {each["Key"] for each in versions["Versions"]}
    deleted = {each["Key"] for each in versions["DeleteMarkers"] if each["IsLatest"]}
    delivered = {each for each in kept if "/outcomes/fill-" in each or "/values/fill-" in each}
    assert len(delivered) > 1
    assert delivered <= deleted
