"""What it costs to follow real jobs: requests on S3 and calls of Batch, through a proxy."""

from __future__ import annotations

import asyncio
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import farcall.local
from farcall import BatchExecutor, Job
from farcall_runtime.contract import Location
from tests.support.patience import until_async
from tests.support.proxy import Proxy, Request
from tests.support.tasks import wait_for


class Watched(Proxy):
    """Notes which prefix each LIST names, below the run's inbox, and where it begins."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.listed: list[str] = []
        self.begun: list[str] = []

    def note(self, request: Request) -> None:
        super().note(request)
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(request.path).query))
        prefix = query.get("prefix")
        if prefix is not None:
            self.begun.append(query.get("start-after", ""))
            self.listed.append(prefix.partition("/outcomes/")[2].rstrip("/"))


@pytest.fixture
def proxy(aws: farcall.local.LocalAWS) -> Iterator[Watched]:
    with Watched(aws.endpoint_url) as opened:
        yield opened


def place_of(job: Job[object]) -> Location:
    assert job._handle._place is not None
    return job._handle._place[0].where


async def test_jobs_of_their_own_are_found_by_one_listing(
    proxy: Watched, make_executor: Callable[..., BatchExecutor], tmp_path: Path
) -> None:
    async with make_executor(endpoint_url=proxy.url) as executor:
        tasks = [executor.with_options(priority=n).task(wait_for) for n in range(6)]
        jobs = await asyncio.gather(
            *(t.submit(str(tmp_path / "go"), n) for n, t in enumerate(tasks))
        )
        assert len({place_of(job).bundle for job in jobs}) == 6
        # Before the last was submitted some may have been looked for one by one.
        await until_async(lambda: proxy.listed[-4:] == [""] * 4)
        (tmp_path / "go").touch()
        assert [await job.result() for job in jobs] == list(range(6))
        assert proxy.of("batch")["submitjob"] == 6
