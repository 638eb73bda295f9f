"""Every operation meets every fault: for a while, or for ever, and then whoever waits is told."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import farcall.aws
import farcall.local
from farcall import (
    BatchExecutor,
    FarcallError,
    JobCancelledError,
    JobError,
    ServiceError,
    batch,
    bucket,
    lanes,
    watching,
)
from proxy import FAULTS, Fault, Proxy

PATIENCE_S = 90
KINDS: tuple[Fault, ...] = (*FAULTS, "denied", "page", "hang")
REMEDY = re.compile("check |try again|renew |need permission|log in|find out|can be set to")


@pytest.fixture
def _impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is borne for a minute, or for an hour, is here for a second or two."""
    monkeypatch.setattr(farcall.aws, "_READ_TIMEOUT_S", 3)
    monkeypatch.setattr(farcall.aws, "_LONGEST_REQUEST_S", 6)
    monkeypatch.setattr(farcall.aws, "_RETRY_S", 1)
    monkeypatch.setattr(farcall.aws, "_ATTEMPTS", 2)
    monkeypatch.setattr(bucket, "_TRY_FOR_S", 1.0)
    monkeypatch.setattr(batch, "_SUBMIT_FOR_S", 1.0)
    monkeypatch.setattr(batch, "_REGISTER_FOR_S", 1.0)
    monkeypatch.setattr(batch, "_TERMINATE_FOR_S", 1.0)
    monkeypatch.setattr(batch, "_LOOK_FOR_S", 1.0)
    monkeypatch.setattr(batch, "LOOK_AGAIN_S", (0.1, 0.3))
    monkeypatch.setitem(lanes.Lane.call.__kwdefaults__, "patience_s", 1.0)
    monkeypatch.setattr(lanes, "_REFUSED_FOR_S", 2.0)
    monkeypatch.setattr(watching, "_GIVE_UP_S", 3.0)


def square(number: int) -> int:
    return number * number


def wait_for(path: str) -> int:
    deadline = time.monotonic() + PATIENCE_S
    while not Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return 49


def touch(path: Path) -> None:
    path.touch()


def vanish() -> None:
    """End the container without an outcome."""
    os.kill(os.getppid(), signal.SIGKILL)


# --- what a user does -------------------------------------------------------------------------

Way = Callable[[BatchExecutor, Callable[[], None], Path], Awaitable[Any]]


async def call(executor: BatchExecutor, spoil: Callable[[], None], _: Path) -> Any:
    spoil()
    async with executor:
        return await executor.task(square)(7)


async def sweep(executor: BatchExecutor, spoil: Callable[[], None], _: Path) -> Any:
    spoil()
    async with executor:
        return (await executor.task(square).map([7, 7]))[1]


async def submit(executor: BatchExecutor, spoil: Callable[[], None], go: Path) -> Any:
    async with executor:
        job = await executor.submit(wait_for, str(go))
        spoil()
        touch(go)
        return await job.result()


async def cancel(executor: BatchExecutor, spoil: Callable[[], None], go: Path) -> Any:
    async with executor:
        job = await executor.submit(wait_for, str(go))
        spoil()
        try:
            await job.cancel()
            with pytest.raises(JobCancelledError):
                await job.result()
        finally:
            touch(go)
        return 49


async def end_without_outcome(executor: BatchExecutor, spoil: Callable[[], None], _: Path) -> Any:
    async with executor:
        job = await executor.submit(vanish)
        spoil()
        await job.result()


async def ask(executor: BatchExecutor, spoil: Callable[[], None], go: Path) -> Any:
    async with executor:
        job = await executor.submit(wait_for, str(go))
        spoil()
        try:
            await job.status()
        finally:
            touch(go)
        return 49


async def read_output(executor: BatchExecutor, spoil: Callable[[], None], go: Path) -> Any:
    async with executor:
        job = await executor.submit(wait_for, str(go))
        spoil()
        try:
            assert await job.stdout() == ""
        finally:
            touch(go)
        return 49


OPERATIONS: list[tuple[str, str, Way]] = [
    ("batch describejobqueues", "DescribeJobQueues", call),
    ("batch describejobdefinitions", "DescribeJobDefinitions", call),
    ("batch registerjobdefinition", "RegisterJobDefinition", call),
    ("batch submitjob", "SubmitJob", sweep),
    ("batch listjobs", "ListJobs", call),
    ("batch describejobs", "DescribeJobs", end_without_outcome),
    ("batch describejobs", "DescribeJobs", ask),
    ("batch terminatejob*", "TerminateJob", cancel),
    ("batch *", "", call),
    ("s3 PUT bundles", "PutObject", call),
    ("s3 LIST outcomes", "ListObjectsV2", submit),
    ("s3 GET outcomes", "GetObject", call),
    ("s3 GET outcomes", "GetObject", submit),
    ("s3 LIST streams", "ListObjectsV2", read_output),
    ("s3 DELETE", "DeleteObjects", submit),
    ("iam *", "GetRole", call),
    ("sts *", "GetCallerIdentity", call),
    ("logs *", "DescribeLogGroups", call),
    ("logs *", "GetLogEvents", end_without_outcome),
]


each_operation = pytest.mark.parametrize(
    ("pattern", "operation", "way"), OPERATIONS, ids=lambda part: getattr(part, "__name__", part)
)


@pytest.fixture
def meet(
    aws: farcall.local.LocalAWS, make_executor: Callable[..., BatchExecutor], tmp_path: Path
) -> Callable[..., Awaitable[tuple[Proxy, Any]]]:
    """Do something while an operation meets a fault; return what came of it."""

    async def do(
        way: Way, pattern: str, operation: str, fault: Fault, times: int | None
    ) -> tuple[Proxy, Any]:
        image = f"farcall-local-process:{uuid.uuid4().hex}"
        with Proxy(aws.endpoint_url) as proxy:

            def spoil() -> None:
                if times is None:
                    proxy.lasting[pattern] = fault
                else:
                    proxy.faults[pattern] += [fault] * times
                if operation == "ListJobs":
                    proxy.faults["batch submitjob"].append("lost")
                if operation == "GetCallerIdentity":  # asked for where IAM does not answer
                    proxy.lasting["iam *"] = "denied"

            executor = make_executor(endpoint_url=proxy.url, container_image_uri=image)
            return proxy, await outcome_of(way(executor, spoil, tmp_path / f"go {fault}"))

    return do


@each_operation
@pytest.mark.usefixtures("_impatience")
async def test_a_fault_that_lasts_ends_in_a_value_or_in_words(
    meet: Callable[..., Awaitable[tuple[Proxy, Any]]], pattern: str, operation: str, way: Way
) -> None:
    met = await asyncio.gather(*(meet(way, pattern, operation, kind, None) for kind in KINDS))
    for kind, (proxy, came) in zip(KINDS, met, strict=True):
        assert sum(proxy.injected.values()), (kind, came)
        check(came, operation, str(kind))


@each_operation
async def test_a_fault_that_passes_costs_nothing(
    meet: Callable[..., Awaitable[tuple[Proxy, Any]]], pattern: str, operation: str, way: Way
) -> None:
    kinds = list(FAULTS)
    if operation == "GetCallerIdentity":
        kinds.remove("expired")  # IAM was asked with the same: they have expired
    met = await asyncio.gather(*(meet(way, pattern, operation, kind, 2) for kind in kinds))
    for kind, (proxy, came) in zip(kinds, met, strict=True):
        assert sum(proxy.injected.values()), (kind, came)
        if way is end_without_outcome:
            assert isinstance(came, JobError), (kind, repr(came))
        else:
            assert came == 49, (kind, repr(came))


async def outcome_of(done: Awaitable[Any]) -> Any:
    try:
        return await asyncio.wait_for(done, PATIENCE_S)
    except Exception as error:  # whatever it is, it is looked at
        return error


def check(came: Any, operation: str, kind: str) -> None:
    if isinstance(came, ServiceError):
        said = str(came)
        assert operation in said, (kind, said)
        assert REMEDY.search(said), (kind, said)
    elif came != 49:
        assert isinstance(came, FarcallError), (kind, repr(came))


@pytest.mark.usefixtures("_impatience")
@pytest.mark.parametrize("kind", ["error", "lost", "denied", "page", "hang"])
@pytest.mark.parametrize("way", [call, ask])
async def test_credentials_that_cannot_be_had_are_told(
    aws: farcall.local.LocalAWS,
    make_executor: Callable[..., BatchExecutor],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    kind: Fault,
    way: Way,
) -> None:
    """They are fetched when the session opens, and, so soon will they expire, for each call."""
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 120))
    keys = {"AccessKeyId": "ASIA1", "SecretAccessKey": "s", "Token": "t", "Expiration": soon}
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with Proxy(aws.endpoint_url) as proxy:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{proxy.url}/credentials")
        proxy.lasting["credentials *"] = (200, keys)

        def spoil() -> None:
            proxy.lasting["credentials *"] = kind

        executor = make_executor(endpoint_url=proxy.url)
        came = await outcome_of(way(executor, spoil, tmp_path / "go"))
        assert proxy.injected[f"credentials GET {kind}"]
    check(came, "", str(kind))
