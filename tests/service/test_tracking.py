"""What it costs to follow real jobs: requests on S3 and calls of Batch, through a proxy."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path

import obstore
import pytest
from obstore.store import S3Store

import farcall.local
from farcall import BatchExecutor, Job, JobError
from farcall.engine.session import session_for
from farcall_runtime.contract import Location, outcomes_prefix
from tests.support.patience import PATIENCE_S, until_async
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


def fail(number: int) -> None:
    raise ValueError(number)


def place_of(job: Job[object]) -> Location:
    assert job._handle._place is not None
    return job._handle._place[0].where


async def test_failed_tasks_of_before_cost_nothing(
    proxy: Watched, make_executor: Callable[..., BatchExecutor], tmp_path: Path
) -> None:
    """Their outcomes stay in the inbox, and only what is waited for is listed."""
    async with make_executor(endpoint_url=proxy.url) as executor:
        errors = await executor.task(fail).map(range(3), return_exceptions=True)
        assert [error.args[0] for error in errors] == [0, 1, 2]  # type: ignore[attr-defined]
        proxy.listed.clear()
        job = await executor.submit(wait_for, str(tmp_path / "go"))
        waiting = asyncio.ensure_future(job.result())
        while len(proxy.listed) < 4:
            await asyncio.sleep(0.05)
        (tmp_path / "go").touch()
        assert await waiting == 0
        assert set(proxy.listed) == {place_of(job).bundle}


async def test_a_task_is_found_behind_more_than_a_page_of_outcomes(
    proxy: Watched,
    aws: farcall.local.LocalAWS,
    make_executor: Callable[..., BatchExecutor],
    tmp_path: Path,
) -> None:
    """The listing begins where what is waited for begins."""
    async with make_executor(endpoint_url=proxy.url) as executor:
        task = executor.task(wait_for)
        jobs = await asyncio.gather(*(task.submit(str(tmp_path / f"{n}"), n) for n in range(3)))
        where = place_of(jobs[0])
        assert [place_of(job).bundle for job in jobs] == [where.bundle] * 3
        store = S3Store(
            where.bucket,
            config={"endpoint": aws.endpoint_url, "region": "us-east-1"},
            client_options={"allow_http": True},
        )
        for first in range(10_000, 11_500, 50):  # all of which sort after 1, and before 2
            keys = [where.outcome_key(index) for index in range(first, first + 50)]
            await asyncio.gather(*(obstore.put_async(store, key, b"x") for key in keys))
        for n in (1, 0):
            (tmp_path / f"{n}").touch()
            assert await jobs[n].result() == n
        proxy.listed.clear()
        proxy.begun.clear()
        while len(proxy.listed) < 5:
            await asyncio.sleep(0.05)
        (tmp_path / "2").touch()
        assert await jobs[2].result() == 2
        assert len(set(proxy.begun)) == 1  # a page for each look, though two lie there
        assert set(proxy.listed) == {where.bundle}
        left = obstore.list(store, outcomes_prefix(where.root), chunk_size=2000)
        assert len(await anext(aiter(left))) >= 1500


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


async def test_children_that_die_are_found_by_one_list_and_one_question(
    proxy: Watched, make_executor: Callable[..., BatchExecutor], tmp_path: Path
) -> None:
    """Of a sweep that runs on: their container's end leaves no outcome."""

    def work(number: int) -> int:
        if number in (1, 2):
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(PATIENCE_S)
        return wait_for(str(tmp_path / "go"), number)

    async with make_executor(endpoint_url=proxy.url) as executor:
        died, values = [], []
        async for index, value in executor.task(work).map(range(4), return_exceptions=True):
            if isinstance(value, JobError):
                died.append(index)
            else:
                values.append(value)
            if len(died) == 2:
                (tmp_path / "go").touch()
        assert (sorted(died), sorted(values)) == ([1, 2], [0, 3])
        # One list for each of the moments at which one more had failed.
        assert 1 <= proxy.of("batch")["listjobs"] <= 2


async def test_a_consumer_that_does_not_take_what_arrived_costs_no_request(
    proxy: Watched, make_executor: Callable[..., BatchExecutor]
) -> None:
    async with make_executor(endpoint_url=proxy.url) as executor:
        session = await session_for(executor.settings)
        jobs = await asyncio.gather(*(executor.task(abs).submit(-n) for n in range(2)))
        submission, _ = jobs[0]._handle._place  # type: ignore[misc]
        assert [await job.result() for job in jobs] == [0, 1]

        full, told = [True], []
        watched = session.tracker
        watched.watch(
            submission, [0, 1], executor.settings, lambda i, _: told.append(i), lambda: full[0]
        )
        proxy.listed.clear()
        while watched.latest(submission.job_id) is None:
            await asyncio.sleep(0.05)
        assert (proxy.listed, told) == ([], [])
        full[0] = False
        while len(told) < 2:  # both have ended, and their outcomes were taken
            await asyncio.sleep(0.05)
        assert set(proxy.listed) == {submission.where.bundle}
