"""User operations, and the faults that they meet.

Each operation starts a client whose requests pass through a fault proxy. For permanent faults,
there are short timeouts and a check of the resulting error.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import farcall_local
from farcall import BatchExecutor, FarcallError, JobCancelledError, ServiceError
from farcall.testing import Timing
from tests.support.patience import PATIENCE_S
from tests.support.proxy import Fault, Proxy
from tests.support.tasks import wait_for


def square(number: int) -> int:
    return number * number


def touch(path: Path) -> None:
    path.touch()


def vanish() -> None:
    """Kill the container, so that it stores no outcome."""
    os.kill(os.getppid(), signal.SIGKILL)


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
        job = await executor.submit(wait_for, str(go), 49)
        spoil()
        touch(go)
        return await job.result()


async def cancel(executor: BatchExecutor, spoil: Callable[[], None], go: Path) -> Any:
    async with executor:
        job = await executor.submit(wait_for, str(go), 49)
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
        job = await executor.submit(wait_for, str(go), 49)
        spoil()
        try:
            await job.status()
        finally:
            touch(go)
        return 49


async def read_output(executor: BatchExecutor, spoil: Callable[[], None], go: Path) -> Any:
    async with executor:
        job = await executor.submit(wait_for, str(go), 49)
        spoil()
        try:
            assert await job.stdout() == ""
        finally:
            touch(go)
        return 49


OPERATIONS: list[tuple[str, str, Way]] = [
    ("batch describejobqueues", "DescribeJobQueues", call),
    ("batch registerjobdefinition", "RegisterJobDefinition", call),
    ("batch submitjob", "SubmitJob", sweep),
    ("batch listjobs", "ListJobs", call),
    ("batch describejobs", "DescribeJobs", end_without_outcome),
    ("batch terminatejob*", "TerminateJob", cancel),
    ("s3 PUT bundles", "PutObject", call),
    ("s3 GET outcomes", "GetObject", call),
    ("s3 LIST streams", "ListObjectsV2", read_output),
    ("s3 DELETE", "DeleteObjects", submit),
    ("iam *", "GetRole", call),
    ("sts *", "GetCallerIdentity", call),
    ("logs *", "GetLogEvents", end_without_outcome),
]


each_operation = pytest.mark.parametrize(
    ("pattern", "operation", "way"), OPERATIONS, ids=lambda part: getattr(part, "__name__", part)
)


class Meeting:
    """Runs an operation while its requests meet a fault.

    Args:
        aws: Local AWS emulator.
        make_executor: Creates an executor.
        folder: Folder for temporary files.
    """

    def __init__(
        self,
        aws: farcall_local.LocalAWS,
        make_executor: Callable[..., BatchExecutor],
        folder: Path,
    ) -> None:
        self._aws, self._make_executor, self._folder = aws, make_executor, folder

    async def of(self, way: Way, pattern: str, operation: str, fault: Fault) -> tuple[Proxy, Any]:
        """Run an operation with a lasting fault; return the proxy and the result."""
        image = f"farcall-local-process:{uuid.uuid4().hex}"
        with Proxy(self._aws.endpoint_url) as proxy:

            def spoil() -> None:
                proxy.lasting[pattern] = fault
                if operation == "ListJobs":
                    proxy.faults["batch submitjob"].append("lost")
                if operation == "GetCallerIdentity":  # called only if IAM does not respond
                    proxy.lasting["iam *"] = "denied"

            executor = self._make_executor(endpoint_url=proxy.url, image=image)
            return proxy, await outcome_of(way(executor, spoil, self._folder / f"go {fault}"))


async def outcome_of(done: Awaitable[Any]) -> Any:
    try:
        return await asyncio.wait_for(done, PATIENCE_S)
    except Exception as error:  # the test checks the error
        return error


# --- permanent faults ---------------------------------------------------------------------------


REMEDY = re.compile(
    "check |try again|renew |need permission|captive portal|find out|set [a-z_]+ to"
)


# Limits of a minute or an hour are reduced to a second or two. They count from the first failure.
# A slow response counts as a missing one.
IMPATIENT = pytest.mark.timing(
    attempts=2,
    call_retry_s=1.0,
    give_up_s=3.0,
    listed_within_s=1.0,
    register_retry_s=1.0,
    sending_retry_s=1.0,
    store_retry_s=1.0,
    submit_polls_s=(0.1, 0.3),
    submit_retry_s=1.0,
    throttled_for_s=2.0,
)


def answering_within(timing: Timing, seconds: float) -> Timing:
    return replace(timing, read_timeout_s=seconds, request_timeout_s=2 * seconds)


def check(came: Any, operation: str, kind: str) -> None:
    if isinstance(came, ServiceError):
        said = str(came)
        assert operation in said, (kind, said)
        assert REMEDY.search(said), (kind, said)
    elif came != 49:
        assert isinstance(came, FarcallError), (kind, repr(came))
