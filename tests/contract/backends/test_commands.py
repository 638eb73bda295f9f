"""Contract of `farcall.backends.base.Backend` for command jobs on one or more nodes."""

import dataclasses
import json

import pytest

import farcall
from farcall import JobStatus, SettingsError
from farcall.model.commands import ENV_RUN
from farcall.model.failure_reasons import OWN_REASON
from tests.contract.backends.platforms import ENDED, shell
from tests.support.patience import until_async


async def _lines(jobs, detail):
    """Return the log lines of a node or a single-node job."""
    log = jobs.backend.log(detail.log_group, detail.log_stream)
    return [line.text async for page in log.read() for line in page]


async def _nodes(jobs, detail):
    """Wait until all nodes of a job have finished; describe them."""
    return [await jobs.ended(detail.node_id(index)) for index in range(detail.nodes)]


@pytest.fixture
def until_go(go):
    """Shell command that waits for `go`."""
    return f"until [ -e {go} ]; do sleep 0.02; done"


# --- one node ---------------------------------------------------------------------------------


async def test_one_node_command_is_plain_job(jobs):
    spec = jobs.command(shell('echo "hi $NAME"', env={"NAME": "you"}))
    job_id = await jobs.submit(spec)
    found = await jobs.ended(job_id)
    assert (found.status, found.exit_code) == (JobStatus.SUCCEEDED, 0)
    assert found.is_command
    assert (found.groups, found.nodes, found.node_index) == ((), 0, None)
    assert found.node_id(0) == job_id
    (group,) = spec.groups
    assert (found.image, found.command) == (group.image, tuple(group.command))
    assert (found.vcpu, found.memory_mib) == (1, 256)
    assert found.environment["NAME"] == "you"
    assert found.environment[ENV_RUN] == spec.environment[ENV_RUN]
    assert await _lines(jobs, found) == ["hi you"]


async def test_command_exit_code_fails_the_job(jobs):
    found = await jobs.ended(await jobs.submit(jobs.command(shell("exit 3"))))
    assert (found.status, found.exit_code) == (JobStatus.FAILED, 3)
    assert found.failure_reason().kind is farcall.CommandError
    assert found.failure_reason().exit_code == 3


# --- several nodes ----------------------------------------------------------------------------


async def test_nodes_run_their_group_command(jobs, until_go, go):
    first = "echo main $A"
    rest = 'echo "node ${FARCALL_NODE_INDEX:-$AWS_BATCH_JOB_NODE_INDEX} $A"'
    spec = jobs.command(
        shell(f"{first}; {until_go}", env={"A": "1"}),
        shell(rest, count=2, env={"A": "2"}, vcpu=2, memory=0.5),
    )
    assert (spec.nodes, spec.is_multi_node) == (3, True)
    job_id = await jobs.submit(spec)

    async def have_begun():
        found = await jobs.backend.describe([f"{job_id}#{index}" for index in (1, 2)])
        return len(found) == 2 and all(node.status in ENDED for node in found.values())

    await until_async(have_begun)  # the other nodes, before the main node's exit stops them
    go.touch()
    found = await jobs.ended(job_id)
    assert (found.status, found.exit_code) == (JobStatus.SUCCEEDED, 0)
    assert found.is_command
    assert (found.nodes, found.node_index) == (3, None)
    main, others = found.groups
    assert [(group.first, group.last) for group in (main, others)] == [(0, 0), (1, 2)]
    assert [(group.vcpu, group.memory_mib) for group in (main, others)] == [(1, 256), (2, 512)]
    assert [group.environment["A"] for group in (main, others)] == ["1", "2"]
    assert (others.image, others.command) == (spec.groups[1].image, ("sh", "-c", rest))
    nodes = await _nodes(jobs, found)
    assert [node.job_id for node in nodes] == [f"{job_id}#{index}" for index in range(3)]
    assert [node.node_index for node in nodes] == [0, 1, 2]
    assert [node.is_command for node in nodes] == [True] * 3
    assert [node.nodes for node in nodes] == [0] * 3
    assert [node.command for node in nodes] == [main.command, others.command, others.command]
    assert [node.exit_code for node in nodes] == [0] * 3
    assert [await _lines(jobs, node) for node in nodes] == [["main 1"], ["node 1 2"], ["node 2 2"]]
    assert await jobs.backend.describe([f"{job_id}#3"]) == {}


async def test_main_node_decides_job_status(jobs, until_go, go):
    spec = jobs.command(shell(f"{until_go}; exit 4"), shell("exit 5"))
    job_id = await jobs.submit(spec)

    async def other_has_ended():
        found = await jobs.backend.describe([f"{job_id}#1"])
        return any(node.status in ENDED for node in found.values())

    await until_async(other_has_ended)
    assert not (await jobs.describe(job_id)).status.is_final
    go.touch()
    found = await jobs.ended(job_id)
    assert (found.status, found.exit_code) == (JobStatus.FAILED, 4)
    assert found.failure_reason().kind is farcall.CommandError
    main, other = await _nodes(jobs, found)
    assert [node.exit_code for node in (main, other)] == [4, 5]
    assert other.failure_reason().kind is farcall.CommandError


async def test_main_node_exit_stops_others(jobs):
    spec = jobs.command(shell("exit 0"), shell("exec sleep 600"))
    found = await jobs.ended(await jobs.submit(spec))
    assert found.status is JobStatus.SUCCEEDED
    _, other = await _nodes(jobs, found)
    assert other.status is JobStatus.FAILED


async def test_attempt_restarts_all_nodes(jobs, platform):
    script = 'n=${AWS_BATCH_JOB_ATTEMPT:-1}; echo "attempt $n"; exit $((n == 1))'
    waiting = shell("exec sleep 600")
    spec = jobs.command(shell(script), waiting, retry_attempts=2, retry_on="failure")
    found = await jobs.ended(await jobs.submit(spec))
    main, other = await _nodes(jobs, found)
    assert (main.status, other.status) == (found.status, JobStatus.FAILED)
    if not platform.retries_nodes:
        assert (found.status, found.exit_code) == (JobStatus.FAILED, 1)
        assert (found.attempts, found.attempts_allowed) == (1, 1)
        assert [each.exit_code for each in main.tried] == [1]
        return
    assert found.status is JobStatus.SUCCEEDED
    assert (found.attempts, found.attempts_allowed) == (2, 2)
    assert [each.exit_code for each in main.tried] == [1, 0]
    assert await _lines(jobs, main) == ["attempt 2"]
    assert len({each.log_stream for each in main.tried}) == 2


async def test_terminated_job_ends_all_nodes(jobs):
    job_id = await jobs.submit(jobs.command(shell("exec sleep 600", count=2)))

    async def all_run():
        found = await jobs.backend.describe([f"{job_id}#{index}" for index in range(2)])
        return [node.status for node in found.values()] == [JobStatus.RUNNING] * 2

    await until_async(all_run)
    assert await jobs.backend.terminate([job_id], "no longer needed") == {}
    found = await jobs.ended(job_id)
    assert found.status_reason.startswith(f"{OWN_REASON}no longer needed")
    for each in (found, *await _nodes(jobs, found)):
        assert each.status is JobStatus.FAILED
        assert each.is_terminated
        assert each.failure_reason().kind is farcall.JobCancelledError


# --- lookup, plans, rejection -----------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2])
async def test_commands_are_found_and_listed(jobs, count):
    spec = jobs.command(shell("true", count=count))
    queue = spec.settings.queue
    assert await jobs.backend.find(spec.name, queue) == []
    job_id = await jobs.submit(spec)
    found = await jobs.ended(job_id)
    assert await jobs.backend.find(spec.name, queue) == [job_id]
    assert [one.job_id for one in await jobs.backend.list_named(spec.name, queue)] == [job_id]
    listed = [one.job_id for one in await jobs.listed(since=found.created_at)]
    assert listed.count(job_id) == 1
    assert not [one for one in listed if "#" in one]


@pytest.mark.parametrize("offline", [False, True])
async def test_plan_shows_commands(jobs, offline):
    spec = jobs.command(shell("echo planned-here"), shell("echo and-there", count=2))
    planned = json.dumps(await jobs.backend.plan(spec, offline=offline))
    for expected in (spec.name, "planned-here", "and-there"):
        assert expected in planned
    assert await jobs.backend.find(spec.name, spec.settings.queue) == []


async def test_incomplete_group_is_not_submitted(jobs):
    spec = jobs.command(shell("true"), dataclasses.replace(shell("true"), image=""))
    with pytest.raises(SettingsError, match=r"groups\[1\]: image is ''"):
        await jobs.backend.prepare(spec)
    assert await jobs.backend.find(spec.name, spec.settings.queue) == []
