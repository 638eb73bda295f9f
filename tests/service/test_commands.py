"""Command jobs from launch to exit.

Starts the local AWS emulator, because exit codes, output and termination come from real programs.
"""

from __future__ import annotations

import contextlib

import pytest

from farcall import (
    JobStatus,
    Nodes,
    UnknownError,
)
from farcall.model.commands import ENV_RUN

IMAGE = "public.ecr.aws/docker/library/alpine:3"


def sh(script: str) -> list[str]:
    return ["sh", "-c", script]


async def test_command_has_environment_variables(executor):
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


async def test_node_output_is_followed(executor, tmp_path):
    go, last = tmp_path / "go", tmp_path / "last"
    wait = "until [ -e {} ]; do sleep 0.02; done"
    script = f"echo one $AWS_BATCH_JOB_NODE_INDEX; {wait.format(go)}; echo two; sleep 600"
    main = f"{wait.format(last)}; echo end"
    job = await executor.command(groups=[Nodes(1, IMAGE, sh(main)), Nodes(2, IMAGE, sh(script))])

    found: list[tuple[int, str]] = []
    async with contextlib.aclosing(job.logs(follow=True)) as lines:
        async for line in lines:
            found.append((line.node, line.text))
            if len(found) == 2:
                go.touch()
            if len(found) == 4:
                last.touch()

    assert sorted(found[:2]) == [(1, "one 1"), (2, "one 2")]
    assert sorted(found[2:4]) == [(1, "two"), (2, "two")]
    assert found[4:] == [(0, "end")]
    assert [line.text async for line in job.logs(2, tail=1)] == ["two"]
    with pytest.raises(UnknownError):
        await anext(job.logs(3))
