"""What happens between two turns of the embedded Batch's event loop."""

from __future__ import annotations

import asyncio

import pytest

from farcall.local import names
from farcall.local.batch import submissions
from farcall.local.batch.definitions import Definitions
from farcall.local.batch.engine import Engine
from farcall.local.batch.jobs import Status
from farcall.local.batch.queues import Queues
from farcall.local.iam.signatures import AccessKey
from farcall.local.runners.credentials import RoleCredentials
from farcall.local.runners.execution import Timing, World
from farcall.local.runners.logs import CloudWatchLogs
from farcall.local.runners.process import ProcessRunner
from tests.support.patience import until_async

DEFINITION = {
    "jobDefinitionName": "sleeper",
    "type": "container",
    "containerProperties": {
        "image": "any",
        "command": ["sleep", "600"],  # until the test ends it
        "resourceRequirements": [
            {"type": "VCPU", "value": "1"},
            {"type": "MEMORY", "value": "64"},
        ],
        "logConfiguration": {"logDriver": "json-file"},
    },
}


@pytest.fixture
def submission():
    """Make a job that sleeps."""
    definitions, queues = Definitions(), Queues()
    definitions.register(DEFINITION, 1000)
    environment = names.COMPUTE_ENVIRONMENT
    queues.create_environment({"computeEnvironmentName": environment, "type": "UNMANAGED"})
    order = [{"order": 1, "computeEnvironment": environment}]
    queues.create_queue(
        {"jobQueueName": names.QUEUE, "priority": 1, "computeEnvironmentOrder": order}
    )
    wanted = {"jobName": "sleep", "jobQueue": names.QUEUE, "jobDefinition": "sleeper"}
    return lambda number: submissions.build(
        wanted, 1000, number=number, definitions=definitions, queues=queues
    )


@pytest.fixture
async def engine():
    def assume(*_):
        raise AssertionError("these jobs have no role")

    world = World(
        runner=ProcessRunner("http://127.0.0.1:9", RoleCredentials(assume, AccessKey.new())),
        logs=CloudWatchLogs(None, None),
        assumable=lambda _: False,
        environment_name=lambda _: names.COMPUTE_ENVIRONMENT,
        timing=Timing(),
    )
    engine = Engine(world, 1)
    yield engine
    await engine.close()


@pytest.mark.parametrize("turns", range(8))
async def test_a_job_that_is_ended_while_its_turn_comes_stays_ended(engine, submission, turns):
    job = engine.submit(submission(0))
    for _ in range(turns):
        await asyncio.sleep(0)
    engine.terminate(job, "enough")

    # The one processor is free again for another.
    other = engine.submit(submission(1))
    await until_async(lambda: other.status is Status.RUNNING, 30)
    assert (Status.FAILED, "enough") == (job.status, job.status_reason)
