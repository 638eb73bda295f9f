"""Buckets in another region, and stores that are not S3.

Starts the local AWS emulator and a proxy that redirects requests or ignores headers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from farcall import OutcomeMissingError, ServiceError
from farcall.operations import doctor
from farcall.operations.doctor import FAILED, OK, Finding
from tests.support.clients import client
from tests.support.faults import ELSEWHERE, Fault, Request
from tests.support.proxy import Proxy


@pytest.fixture
def proxy(aws):
    with Proxy(aws.endpoint_url) as proxy:
        proxy.keys = aws.environment
        yield proxy


@pytest.fixture
def examined(proxy, monkeypatch):
    """Route all of farcall's requests through the proxy."""
    monkeypatch.setenv("FARCALL_ENDPOINT_URL", proxy.url)


async def examine(time_limit_s: float = 60) -> dict[str, Finding]:
    return {each.check: each for each in await doctor.examine(time_limit_s)}


def bad(found: dict[str, Finding]) -> dict[str, str]:
    return {name: each.verdict for name, each in found.items() if each.verdict != OK}


def from_a_container_too(proxy: Proxy) -> dict[str, Any]:
    """Return options that route a container's S3 requests through the proxy."""
    own = {"name": "AWS_ENDPOINT_URL_S3", "value": proxy.url}
    return {"job_definition_extra": {"containerProperties": {"environment": [own]}}}


# --- a bucket in another region ---------------------------------------------------------------


@pytest.fixture(scope="session")
def far_bucket(embedded):
    """A bucket in a different region than the jobs."""
    s3 = client("s3", embedded.environment)
    place = {"LocationConstraint": ELSEWHERE}
    s3.create_bucket(Bucket="far-away", CreateBucketConfiguration=place)
    s3.close()
    return "far-away"


def elsewhere(fault: Fault) -> Callable[[Request], Fault]:
    def rule(request: Request) -> Fault:
        is_wrong = request.service == "s3" and request.region != ELSEWHERE
        return fault if is_wrong else ""

    return rule


@pytest.mark.parametrize("fault", ["redirected", "malformed"])
async def test_bucket_in_other_region_is_used(fault, far_bucket, proxy, make_executor, caplog):
    proxy.rule = elsewhere(fault)
    options = {"s3_bucket_name": far_bucket, **from_a_container_too(proxy)}
    async with make_executor(endpoint_url=proxy.url, **options) as executor:
        assert [1, 2] == await executor.task(abs).map([-1, -2])
        job = await executor.submit(print, "text")
        await job.result()
        assert "text\n" == await job.stdout()
    assert proxy.counts["s3 HEAD"] <= 2  # the first one uses the wrong region
    assert f"is in {ELSEWHERE}, but the jobs are in us-east-1" in caplog.text


# --- stores without required features ---------------------------------------------------------


@pytest.mark.usefixtures("examined")
@pytest.mark.parametrize(
    ("header", "words"),
    [("if-none-match", "despite If-None-Match"), ("range", "it ignores Range")],
)
async def test_doctor_detects_ignored_headers(header, words, proxy):
    proxy.ignored.add(header)
    found = await examine()
    assert {"bucket access": FAILED} == bad(found)
    assert words in found["bucket access"].found
    assert "behaves like S3" in found["bucket access"].remedy


async def test_ignored_range_raises_no_integrity_error(proxy, make_executor):
    options = from_a_container_too(proxy)
    async with make_executor(endpoint_url=proxy.url, **options) as executor:
        proxy.ignored.add("range")
        job = await executor.submit(abs, -1)
        with pytest.raises(OutcomeMissingError, match="does not behave like S3") as caught:
            await job.result()
        assert "a store that supports ranges" in str(caught.value)
        assert "`farcall doctor`" in str(caught.value)
        with pytest.raises(ServiceError, match="returned the whole object.*farcall doctor"):
            await executor.attach(job.id).calls()
