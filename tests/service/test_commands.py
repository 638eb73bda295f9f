"""Command jobs from launch to exit.

Starts the local AWS emulator, because exit codes, output and termination come from real programs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import farcall_local
from farcall import (
    BatchExecutor,
    CommandError,
    CommandJob,
    JobStatus,
    JobTimeoutError,
    Nodes,
    UnknownError,
)
from farcall.model.commands import ENV_RUN
from tests.support.patience import until_async
from tests.support.proxy import Proxy

IMAGE = "public.ecr.aws/docker/library/alpine:3"
SUBMIT = "batch submitjob"
REGISTER = "batch registerjobdefinition"


def sh(script: str) -> list[str]:
    return ["sh", "-c", script]


@pytest.fixture
def watched(options: dict[str, Any], proxy: Proxy) -> BatchExecutor:
    """An executor whose requests are counted."""
    return BatchExecutor(**options, endpoint_url=proxy.url)


class Gate:
    """A file that a script waits for.

    Attributes:
        path: Path of the file.
        wait: Shell command that waits until the file exists.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.wait = f"until [ -e {path} ]; do sleep 0.02; done"

    async def open_after_others(self, job: CommandJob, others: int) -> None:
        """Release the main node after the other nodes' exit; otherwise it would stop them."""

        async def have_ended() -> bool:
            nodes = (await job.nodes())[1:]
            return len([node for node in nodes if node.status.is_final]) == others

        await until_async(have_ended)
        self.path.touch()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    made = Gate(tmp_path / "go")
    yield made
    made.path.touch()


# --- exits ------------------------------------------------------------------------------------


async def test_command_has_environment_variables(executor: BatchExecutor) -> None:
    job = await executor.command(IMAGE, sh('test "$A$B" = 12'), env={"A": "1", "B": "2"})

    result = await job.wait()

    assert job.name.startswith("alpine-")
    assert (result.job_id, result.exit_codes, result.attempts) == (job.id, (0,), 1)
    assert result.started_at is not None
    assert result.stopped_at is not None
    assert job.done()
    detail = await job.detail()
    assert detail.is_command
    assert detail.environment[ENV_RUN] == await executor.run_name()
    assert await job.status() is JobStatus.SUCCEEDED
    assert await job.nodes() == [detail]


async def test_node_groups_run_own_commands(executor: BatchExecutor, gate: Gate) -> None:
    groups = [
        Nodes(1, IMAGE, sh(f'{gate.wait}; test "$ROLE" = main'), env={"ROLE": "main"}),
        Nodes(2, IMAGE, sh("exit $CODE"), env={"CODE": "5"}, memory=2),
    ]
    job = await executor.command(groups=groups)
    await gate.open_after_others(job, 2)

    assert (await job.wait()).exit_codes == (0, 5, 5)
    first, second = (await job.detail()).groups
    assert (first.memory_mib, second.memory_mib) == (1024, 2048)


async def test_missing_program_is_reported(executor: BatchExecutor) -> None:
    job = await executor.command(IMAGE, ["no-such-program"])

    with pytest.raises(CommandError, match="executable file not found"):
        await job.wait()


async def test_time_limit_ends_all_nodes(
    executor: BatchExecutor, aws: farcall_local.LocalAWS
) -> None:
    aws.configure(timeout_scale=0.01)
    try:
        job = await executor.command(IMAGE, ["sleep", "600"], nodes=2, time_limit=60)
        with pytest.raises(JobTimeoutError, match="raise time_limit"):
            await job.wait()
    finally:
        aws.configure(timeout_scale=1)


async def test_node_output_is_followed(
    executor: BatchExecutor, gate: Gate, tmp_path: Path
) -> None:
    last = Gate(tmp_path / "last")
    script = f"echo one $AWS_BATCH_JOB_NODE_INDEX; {gate.wait}; echo two; sleep 600"
    main = f"{last.wait}; echo end"
    job = await executor.command(groups=[Nodes(1, IMAGE, sh(main)), Nodes(2, IMAGE, sh(script))])

    found: list[tuple[int, str]] = []
    async with contextlib.aclosing(job.logs(follow=True)) as lines:
        async for line in lines:
            found.append((line.node, line.text))
            if len(found) == 2:
                gate.path.touch()
            if len(found) == 4:
                last.path.touch()

    assert sorted(found[:2]) == [(1, "one 1"), (2, "one 2")]
    assert sorted(found[2:4]) == [(1, "two"), (2, "two")]
    assert found[4:] == [(0, "end")]
    assert [line.text async for line in job.logs(2, tail=1)] == ["two"]
    with pytest.raises(UnknownError):
        await anext(job.logs(3))


# --- requests ---------------------------------------------------------------------------------


async def test_equal_launches_share_a_definition(watched: BatchExecutor, proxy: Proxy) -> None:
    jobs: list[CommandJob] = []
    for number in range(3):
        command = ["sh", "-c", f"exit {number}"]
        jobs.append(await watched.command(IMAGE, command, shm_size=0.1111, vcpu=number + 1))
    assert (await jobs[0].wait()).exit_codes == (0,)
    with pytest.raises(CommandError):
        await jobs[1].wait()

    assert len({(await job.detail()).definition for job in jobs}) == 1
    assert proxy.counts[REGISTER] == 1
    assert proxy.counts["batch describejobqueues"] == 1
    assert [name for name in proxy.counts if name.startswith("s3")] == []
