"""Jobs as Batch lists them.

Starts the local AWS emulator, because the catalog combines the lists of several statuses of one
queue.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone

from farcall import BatchExecutor
from farcall.engine.session import session_for
from farcall.operations.catalog import Catalog, Query


async def found_by(session, query=None, catalog=None):
    catalog = catalog or Catalog(session.backend)
    queue = BatchExecutor().settings.queue
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
        found = await found_by(session, Query(since=began))
        entries = {e.function: e for e in found if e.run == session.run}
        assert set(entries) == {"double", "triple"}
        assert entries["double"].workflow == ("nightly", "")
        assert entries["triple"].workflow == ("weekly", "")
        assert (entries["double"].detail.array_size, entries["triple"].detail.vcpu) == (3, 1)
        only = await found_by(session, Query(workflow="weekly", since=began))
        assert [e.function for e in only] == ["triple"]
        assert await found_by(session, Query(since=datetime.now(timezone.utc))) == []
