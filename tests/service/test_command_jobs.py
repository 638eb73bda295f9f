"""Command jobs in the catalog: found, explained, described and terminated.

Starts the local AWS emulator, because exit codes and logs of nodes only exist after a real run.
"""

from __future__ import annotations

import json

import pytest

from farcall.engine.session import session_for
from farcall.model.jobs import JobStatus
from farcall.model.settings import Settings
from farcall.operations import describe, json_view
from farcall.operations.cancel import cancel
from farcall.operations.catalog import Catalog, Query
from farcall.operations.explain import explain, record
from tests.support.command_jobs import described, shell, submit
from tests.support.patience import until_async

QUEUE = "farcall-local"


@pytest.fixture
async def session(aws, proxy):
    opened = await session_for(Settings(endpoint_url=proxy.url))
    yield opened
    await opened.close()


class Gate:
    """Holds a job's main node back until the test has seen what is to come before its end."""

    def __init__(self, session, path):
        self._session, self._path = session, path
        self.wait = f"until [ -e {path} ]; do sleep 0.05; done"
        self.main = f"if [ $AWS_BATCH_JOB_NODE_INDEX = 0 ]; then {self.wait}; fi"

    async def open_after(self, *node_ids):
        """Wait for the end of some nodes, then let the main node go on."""

        async def have_ended():
            found = await self._session.backend.describe(node_ids)
            ends = [node.status.is_final for node in found.values()]
            return len(ends) == len(node_ids) and all(ends)

        await until_async(have_ended)
        self._path.touch()


@pytest.fixture
def gate(session, tmp_path):
    return Gate(session, tmp_path / "gate")


@pytest.fixture
async def ended(session):
    """Run a command job to its end; returns its description and explanation."""

    async def run(*groups, **options):
        detail = await described(session, await submit(session, *groups, **options))
        return detail, await explain(session, detail)

    return run


async def entry_of(session, job_id):
    return (await Catalog(session.backend).describe([job_id]))[job_id]


# --- found ------------------------------------------------------------------------------------


async def test_they_are_listed_beside_functions_with_name_workflow_and_user(session):
    one = await submit(session, shell("true"), name="hello-world", workflow="of commands")
    two = await submit(session, shell("true", 2), workflow="of commands")
    catalog, query = Catalog(session.backend), Query(workflow="of commands")
    found = {e.detail.job_id: e async for e in catalog.find([QUEUE], query)}
    assert {one, two} == set(found)
    assert [("hello-world", 0), ("hello", 2)] == [
        (found[job_id].function, found[job_id].detail.nodes) for job_id in (one, two)
    ]
    assert {(True, session.run, session.run)} == {
        (e.is_command, e.run, e.client) for e in found.values()
    }
    for job_id in (one, two):
        await described(session, job_id)


# --- explained --------------------------------------------------------------------------------


async def test_a_failure_comes_with_its_exit_code_its_attempts_and_the_end_of_its_log(ended):
    text = "i=0; while [ $i -lt 12 ]; do echo line $i; i=$((i+1)); done; exit 3"
    detail, why = await ended(shell(text), retry_attempts=2, retry_on="failure")
    assert (why.kind, why.error, why.source) == ("failed", "CommandError", "Batch")
    assert why.sentence == "the command failed (exit code 3)"
    assert why.log == tuple(f"line {n}" for n in range(2, 12))
    (earlier,) = why.earlier
    assert earlier.startswith("CommandError: the command failed (exit code 3)")
    assert json.loads(json.dumps(record(why)))["log"][-1] == "line 11"
    assert detail.attempts == 2


# --- described --------------------------------------------------------------------------------


async def test_a_description_has_groups_and_each_node(session, proxy, gate):
    text = f"{gate.main}; exit 3"
    groups = shell(text, name="head"), shell(text, 100, vcpu=1, memory=0.5)
    job_id = await submit(session, *groups)
    await gate.open_after(*(f"{job_id}#{n}" for n in range(1, 101)))
    await described(session, job_id)
    entry = await entry_of(session, job_id)
    proxy.counts.clear()
    said = await describe.of(session, entry)
    assert proxy.counts["batch describejobs"] == 2  # a page for each hundred of 101 nodes
    assert (said["job"]["kind"], said["job"]["node_count"]) == ("command", 101)
    assert [(g["first"], g["last"], g["memory_mib"]) for g in said["job"]["groups"]] == [
        (0, 0, 256),
        (1, 100, 512),
    ]
    assert json.loads(json.dumps(said))["job"]["command"] == ["sh", "-c", text]
    assert said["bundle"] == ""
    assert [node["index"] for node in said["nodes"]] == list(range(101))
    assert {(node["state"], node["exit_code"]) for node in said["nodes"]} == {("FAILED", 3)}
    assert len({node["log_stream"] for node in said["nodes"]}) == 101


# --- ended ------------------------------------------------------------------------------------


async def test_a_job_is_ended_with_all_its_nodes_and_no_node_alone(session, proxy):
    job_id = await submit(session, shell("sleep 600", 2))
    await described(session, f"{job_id}#1", JobStatus.RUNNING)
    proxy.counts.clear()
    node, whole = await cancel(session, [f"{job_id}#1", job_id], "enough")
    assert (node.outcome, whole.outcome) == ("node", "ending")
    assert node.text == (
        f"{job_id}#1 is one node, which cannot be cancelled alone; "
        f"`farcall cancel {job_id}` cancels the job with all nodes"
    )
    assert proxy.counts["batch terminatejob"] == 1
    detail = await described(session, job_id)
    assert json_view.state(detail) == json_view.CANCELLED

    async def both_ended():
        found = await session.backend.describe([f"{job_id}#0", f"{job_id}#1"])
        return all(each.status.is_final for each in found.values())

    await until_async(both_ended)
    why = await explain(session, detail)
    assert (why.kind, why.children) == ("cancelled", ())
