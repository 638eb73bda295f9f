"""Cancelled jobs on a Batch that loses reasons.

Starts the local AWS emulator and a proxy that removes fields from its responses.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from farcall import BatchExecutor, JobCancelledError
from farcall.operations.json_view import CANCELLED, state
from tests.support.patience import until_async
from tests.support.proxy import Proxy, lose_reasons


@pytest.fixture
def lossy(proxy: Proxy) -> Proxy:
    """A way to a Batch that does not say who ended a job, or why."""

    lose_reasons(proxy)
    return proxy


def sleep(started: str) -> None:
    Path(started).touch()
    time.sleep(600)  # until it is ended


async def test_a_job_ended_by_its_owner_was_cancelled(
    make_executor: Callable[..., BatchExecutor], lossy: Proxy, tmp_path: Path
) -> None:
    async with make_executor(endpoint_url=lossy.url) as executor:
        job = await executor.submit(sleep, str(tmp_path / "started"))
        await until_async((tmp_path / "started").exists)
        await job.cancel("enough of it")

        with pytest.raises(JobCancelledError, match="enough of it") as caught:
            await job.result()
        assert caught.value.exit_code in (137, 143)
        assert state(await job.detail()) == CANCELLED
