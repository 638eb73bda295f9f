"""Races in the event loop of emulated Batch.

Starts processes in this process's event loop, because each test picks the iteration in which a
job is terminated.
"""

from __future__ import annotations

import asyncio
import itertools
import os

import pytest

from farcall.model.jobs import JobStatus
from farcall_local import names
from farcall_local.batch import api
from farcall_local.batch.definitions import Definitions
from farcall_local.batch.engine import Engine
from farcall_local.batch.queues import Queues
from farcall_local.runners.credentials import RoleCredentials
from farcall_local.runners.execution import Durations, World
from farcall_local.runners.logs import CloudWatchLogs
from farcall_local.runners.process import ProcessRunner
from farcall_local.services.signatures import AccessKey
from tests.support.patience import until_async

SLEEP = ["sleep", "600"]  # until the test ends it


def container(command):
    """Return containerProperties for a command."""
    return {
        "image": "any",
        "command": command,
        "resourceRequirements": [
            {"type": "VCPU", "value": "1"},
            {"type": "MEMORY", "value": "64"},
        ],
        "logConfiguration": {"logDriver": "json-file"},
    }


def plain(command=SLEEP):
    """Return a definition of a plain job."""
    return {"type": "container", "containerProperties": container(command)}


def nodes(*commands):
    """Return a definition of a multi-node parallel job, whose first node is the main one."""
    groups = [
        {"targetNodes": str(index), "container": container(command)}
        for index, command in enumerate(commands)
    ]
    properties = {"numNodes": len(groups), "mainNode": 0, "nodeRangeProperties": groups}
    return {"type": "multinode", "nodeProperties": properties}


@pytest.fixture
def submission():
    """Return a function that creates a job from a definition."""
    definitions, queues, numbers = Definitions(), Queues(), itertools.count()
    environment = names.COMPUTE_ENVIRONMENT
    queues.create_environment({"computeEnvironmentName": environment, "type": "UNMANAGED"})
    order = [{"order": 1, "computeEnvironment": environment}]
    queues.create_queue(
        {"jobQueueName": names.QUEUE, "priority": 1, "computeEnvironmentOrder": order}
    )
    wanted = {"jobName": "any", "jobQueue": names.QUEUE, "jobDefinition": "any"}

    def make(definition, attempts=1):
        definitions.register({"jobDefinitionName": "any", **definition}, 1000)
        return api.build(
            {**wanted, "retryStrategy": {"attempts": attempts}},
            1000,
            number=next(numbers),
            definitions=definitions,
            queues=queues,
        )

    return make


@pytest.fixture
async def engine():
    def assume(*_):
        raise AssertionError("these jobs have no role")

    world = World(
        runner=ProcessRunner("http://127.0.0.1:9", RoleCredentials(assume, AccessKey.new())),
        open_log=CloudWatchLogs(None, None).open,
        assumable=lambda _: False,
        environment_name=lambda _: names.COMPUTE_ENVIRONMENT,
        durations=Durations(),
    )
    engine = Engine(world, 1)
    yield engine
    await engine.close()


@pytest.mark.parametrize("definition", [plain(), nodes(SLEEP, SLEEP)], ids=["plain", "nodes"])
@pytest.mark.parametrize("turns", range(8))
async def test_terminated_starting_job_stays_terminated(engine, submission, turns, definition):
    job = engine.submit(submission(definition))
    for _ in range(turns):
        await asyncio.sleep(0)
    engine.terminate(job, "enough")

    # The only processor is free again.
    other = engine.submit(submission(plain()))
    await until_async(lambda: other.status is JobStatus.RUNNING, 30)
    assert (JobStatus.FAILED, "enough") == (job.status, job.status_reason)
    assert all(node.status is JobStatus.FAILED for node in job.nodes.values())


def script(text, folder):
    """Return a shell command that runs in a folder."""
    return ["sh", "-c", f"cd {folder}; {text}"]


@pytest.mark.parametrize("terminated", [False, True])
async def test_retry_waits_for_previous_nodes(engine, submission, tmp_path, terminated):
    main = "until [ -e failing ]; do sleep 0.03; done; exit $((AWS_BATCH_JOB_ATTEMPT == 1))"
    stubborn = "trap '' TERM; touch there; until [ -e leaving ]; do sleep 0.03; done"
    definition = nodes(script(main, tmp_path), script(stubborn, tmp_path))
    job = engine.submit(submission(definition, attempts=2))
    await until_async((tmp_path / "there").exists, 30)
    (tmp_path / "failing").touch()
    await until_async(lambda: job.nodes[0].status is JobStatus.FAILED, 30)
    assert (job.status, len(job.attempts)) == (JobStatus.RUNNING, 1)

    if terminated:
        engine.terminate(job, "enough")
    (tmp_path / "leaving").touch()

    await until_async(lambda: job.status.is_final, 30)
    if terminated:
        assert (job.status, job.status_reason) == (JobStatus.FAILED, "enough")
    else:
        assert job.status is JobStatus.SUCCEEDED
    assert len(job.attempts) == (1 if terminated else 2)


async def test_closed_engine_leaves_no_nodes(engine, submission, tmp_path):
    said = "echo $$ > new-$AWS_BATCH_JOB_NODE_INDEX; mv new-$AWS_BATCH_JOB_NODE_INDEX "
    said += "pid-$AWS_BATCH_JOB_NODE_INDEX; exec sleep 600"
    job = engine.submit(submission(nodes(*[script(said, tmp_path)] * 3)))
    await until_async(lambda: len(list(tmp_path.glob("pid-*"))) == 3, 30)

    await engine.close()

    assert len(job.nodes) == 3
    for path in tmp_path.glob("pid-*"):
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.read_text()), 0)


async def test_job_with_secrets_fails_at_start(engine, submission):
    definition = plain()
    secret = {"name": "TOKEN", "valueFrom": "arn:aws:ssm:us-east-1:1:parameter/t"}
    definition["containerProperties"]["secrets"] = [secret]
    definition["containerProperties"]["executionRoleArn"] = "arn:aws:iam::123456789012:role/r"
    job = engine.submit(submission(definition))
    await until_async(lambda: job.status.is_final)
    assert "(TOKEN): the local AWS emulator has no Secrets Manager" in job.attempts[0].reason
