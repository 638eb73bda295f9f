"""The jobs there are, as Batch lists them."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime, timedelta, timezone

from farcall import BatchExecutor
from farcall.backends.batch.backend import BatchBackend
from farcall.engine.session import session_for
from farcall.model.jobs import JobStatus
from farcall.operations import json_view
from farcall.operations.catalog import Catalog, Query


async def found_by(session, query=None, catalog=None):
    catalog = catalog or Catalog(session.backend)
    queue = BatchExecutor().settings.batch_queue
    return [entry async for entry in catalog.find([queue], query or Query())]


async def test_jobs_are_found_with_their_workflow(aws, monkeypatch):
    monkeypatch.setenv("FARCALL_WORKFLOW", "nightly")
    began = datetime.now(timezone.utc) - timedelta(seconds=1)
    async with BatchExecutor(vcpu=1, memory=0.25) as executor:
        session = await session_for(executor.settings)

        @executor.task
        def double(x):
            return 2 * x

        @executor.task(workflow="weekly")
        def triple(x):
            return 3 * x

        values = await asyncio.gather(double.map(range(3)), triple(1))
        assert values == [[0, 2, 4], 3]
        entries = {e.function: e for e in await found_by(session, Query(since=began))}
        assert set(entries) == {"double", "triple"}
        assert entries["double"].workflow == ("nightly", "")
        assert entries["triple"].workflow == ("weekly", "")
        assert entries["double"].run == entries["triple"].run == session.run
        assert (entries["double"].detail.array_size, entries["triple"].detail.vcpu) == (3, 1)
        only = await found_by(session, Query(workflow="weekly", since=began))
        assert [e.function for e in only] == ["triple"]
        assert await found_by(session, Query(since=datetime.now(timezone.utc))) == []


async def test_tasks_of_two_functions_are_two_jobs(aws):
    async with BatchExecutor(vcpu=1, memory=0.25, workflow="two") as executor:
        session = await session_for(executor.settings)

        @executor.task
        def one(x):
            return x

        @executor.task
        def other(x):
            return -x

        assert await asyncio.gather(one(1), one(2), other(3), other(4)) == [1, 2, -3, -4]
        entries = await found_by(session, Query(workflow="two"))
        assert sorted((e.function, e.detail.array_size) for e in entries) == [
            ("one", 2),
            ("other", 2),
        ]


async def test_a_job_is_described_once_and_its_status_is_ever_new(aws, tmp_path):
    gate = tmp_path / "gate"
    async with BatchExecutor(vcpu=1, memory=0.25, workflow="gated") as executor:
        session = await session_for(executor.settings)

        @executor.task
        def wait():
            import time

            while not gate.exists():
                time.sleep(0.05)

        job = await wait.submit()
        described = []

        class Counting(BatchBackend):
            async def describe(self, job_ids):
                described.append(list(job_ids))
                return await super().describe(described[-1])

        catalog = Catalog(Counting(session.aws))
        query = Query(workflow="gated")
        (before,) = await found_by(session, query, catalog)
        assert not before.detail.status.is_final
        gate.touch()
        await job.result()
        while True:
            (after,) = await found_by(session, query, catalog)
            if after.detail.status.is_final:
                break
        assert after.detail.status is JobStatus.SUCCEEDED
        assert after.detail.environment == before.detail.environment
        assert sum(job.id in ids for ids in described) == 1


async def test_a_job_that_a_person_ended_is_known_by_a_description_of_its_end(aws):
    async with BatchExecutor(vcpu=1, memory=0.25, workflow="ended") as executor:
        session = await session_for(executor.settings)
        job = await executor.task(time.sleep).submit(600)
        catalog, query = Catalog(session.backend), Query(workflow="ended")
        (before,) = await found_by(session, query, catalog)
        assert not before.detail.status.is_final
        await session.aws.batch.terminate_job(jobId=job.id, reason="the lab needs the queue")
        while True:
            (after,) = await found_by(session, query, catalog)
            if after.detail.status.is_final:
                break
            await asyncio.sleep(0.1)
        assert json_view.state(after.detail) == json_view.CANCELLED
