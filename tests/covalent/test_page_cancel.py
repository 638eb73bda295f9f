"""A cancel in farcall's web UI or command line reaches Covalent.

Starts the shared Covalent server on the local AWS emulator, because only the server knows the
states of the other electrons and of sublattices. Slow, because a Covalent server takes seconds
to start.
"""

import asyncio
import os
import time

import covalent as ct
import pytest

from farcall import Settings
from farcall.covalent.api import Covalent
from farcall.covalent.cancel import CovalentCompanion
from farcall.engine.session import session_for
from farcall.operations.cancel import cancel, cancel_all, unfinished
from farcall.operations.catalog import Catalog, Query
from tests.support.patience import until

QUEUE = "farcall-local"


class Recording(Covalent):
    """A Covalent server that records cancel requests."""

    def __init__(self, address):
        super().__init__(address)
        self.cancelled = []

    def cancel(self, dispatch_id, nodes=()):
        self.cancelled.append((dispatch_id, list(nodes)))
        super().cancel(dispatch_id, nodes)


@pytest.fixture
def covalent(server):
    return Recording(server.address)


@pytest.fixture
def work(tmp_path):
    """Return an electron that writes its job's ID and waits: ``work(executor)``."""

    def make(executor):
        path = tmp_path

        def wait(number):
            mark = path / f".{number}"
            mark.write_text(os.environ["AWS_BATCH_JOB_ID"])
            mark.rename(path / f"job-{number}")
            while not (path / "go").exists():
                time.sleep(0.02)
            return number

        return ct.electron(wait, executor=executor)

    return make


def as_client(act):
    """Call a coroutine function with a new session, as another process would."""

    async def run():
        return await act(await session_for(Settings()))

    return asyncio.run(run())


async def found_of(session, run):
    """Return the jobs of a run."""
    return [entry async for entry in Catalog(session.backend).find([QUEUE], Query(run=run))]


def nodes(covalent, dispatch_id, name="wait"):
    """Return node ID to status for the electrons with a name."""
    manifest = covalent.manifest(dispatch_id)
    found = manifest["lattice"]["transport_graph"]["nodes"]
    return {n["id"]: n["metadata"]["status"] for n in found if n["metadata"]["name"] == name}


def test_workflow_is_cancelled_with_sublattices(dispatch, wait, batch, work, jobs, covalent):
    task = work(batch(linger_s=0.5))

    @ct.electron
    @ct.lattice
    def inner():
        return task(1), task(2)

    @ct.lattice(executor="local", workflow_executor="local")
    def outer():
        return task(0), inner()

    started = dispatch(outer)
    job_ids = jobs(0, 1, 2)

    entries = as_client(lambda session: found_of(session, started))
    assert {("outer", started)} == {entry.workflow for entry in entries}
    assert {job_id.partition(":")[0] for job_id in job_ids} == {
        entry.detail.job_id for entry in entries
    }

    as_client(lambda session: cancel(session, job_ids[1:2], "enough", CovalentCompanion(covalent)))
    ((inside, numbers),) = covalent.cancelled
    assert inside != started
    until(lambda: nodes(covalent, inside)[numbers[0]] == "CANCELLED")
    assert ["CANCELLED", "RUNNING"] == sorted(nodes(covalent, inside).values())
    assert ["RUNNING"] == [*nodes(covalent, started).values()]

    covalent.cancelled.clear()
    said = as_client(
        lambda session: cancel_all(session, entries, "enough", CovalentCompanion(covalent))
    )
    assert {"cancelling"} == {each.outcome for each in said}
    assert [(started, [])] == covalent.cancelled
    assert ct.status.CANCELLED == wait(started).status
    assert ["CANCELLED"] == [*nodes(covalent, started).values()]
    until(lambda: {"CANCELLED"} == {*nodes(covalent, inside).values()})
    assert [] == unfinished(as_client(lambda session: found_of(session, started)))
