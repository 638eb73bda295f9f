"""Single submission of a command job on a scripted Batch."""

import asyncio

import pytest

from farcall import Nodes, ServiceError, Settings
from farcall.backends.base import JobSpec
from farcall.engine.launcher import Launcher, command_of
from farcall.model.timing import Timing
from tests.unit.fakes import Client, ScriptedBatch, broken, no_answer, not_sent, refusal

NAME = "hello-0123456789abcdef"
ACCEPTED = {"jobId": "job-1"}
SECRET = "arn:aws:ssm:eu-west-1:111122223333:parameter/a"
SETTINGS = Settings(queue="queue", vcpu=1)
JOB = JobSpec(NAME, 1, {}, SETTINGS, (Nodes(1, "alpine", ["true"]),))
LOOKS = len(Timing().submit_polls_s)
THROTTLED = refusal("TooManyRequestsException", 429, "Too Many Requests")


def listed(*job_ids, name=NAME):
    return {
        "jobSummaryList": [
            {"jobId": each, "jobName": name, "status": "RUNNING"} for each in job_ids
        ]
    }


class World:
    """Launcher with a scripted Batch.

    Attributes:
        there: Job IDs that Batch lists.
    """

    def __init__(self, timing, **operations):
        known = {"jobDefinitions": [{"jobDefinitionArn": "arn:1"}]}
        self.there = []
        operations.setdefault("list_jobs", lambda **_: listed(*self.there))
        operations.setdefault("terminate_job", lambda **_: {})
        self.client = Client(describe_job_definitions=lambda **_: known, **operations)
        self.launcher = Launcher(ScriptedBatch(self.client, timing=timing), timing)

    def submitted(self):
        return [request["jobName"] for request in self.client.asked("submit_job")]

    def looks(self):
        return len(self.client.asked("list_jobs"))

    def ended(self):
        return {call["jobId"]: call["reason"] for call in self.client.asked("terminate_job")}


@pytest.fixture
async def made(clock, timing):
    worlds = []

    def make(**operations):
        worlds.append(World(timing, **operations))
        return worlds[-1]

    yield make
    for world in worlds:
        await world.launcher.close()


async def cancelled(world, after_s):
    """Cancel a launch that is in progress; return its task."""
    launching = asyncio.ensure_future(world.launcher.launch(JOB))
    await asyncio.sleep(after_s)
    launching.cancel()
    await asyncio.gather(launching, return_exceptions=True)
    return launching


# --- answers ----------------------------------------------------------------------------------


async def test_accepted_job_takes_one_request(made):
    world = made(submit_job=[ACCEPTED])
    assert await world.launcher.launch(JOB) == "job-1"
    await asyncio.sleep(3600)
    assert world.submitted() == [NAME]
    assert world.looks() == 0


async def test_refusal_is_final(made):
    world = made(submit_job=[refusal("AccessDeniedException", 403, "not authorized")])
    with pytest.raises(ServiceError):
        await world.launcher.launch(JOB)
    await asyncio.sleep(3600)
    assert len(world.submitted()) == 1
    assert world.looks() == 0


async def test_unsent_request_is_repeated(made):
    world = made(submit_job=[not_sent(), THROTTLED, THROTTLED, not_sent(), ACCEPTED])
    assert await world.launcher.launch(JOB) == "job-1"
    await asyncio.sleep(3600)
    assert world.submitted() == [NAME] * 5
    assert world.looks() == 0


# --- no answer --------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [no_answer(), broken(), refusal("ServerException", 500)])
async def test_unanswered_job_is_adopted(failure, made):
    world = made(submit_job=[failure])
    launching = asyncio.ensure_future(world.launcher.launch(JOB))
    await asyncio.sleep(2)
    world.there.append("job-7")
    assert await launching == "job-7"
    assert world.submitted() == [NAME]
    await asyncio.sleep(3600)
    assert world.ended() == {}


async def test_late_listed_job_is_adopted(made, clock):
    world = made(submit_job=[no_answer()])
    launching = asyncio.ensure_future(world.launcher.launch(JOB))
    await asyncio.sleep(Timing().listed_within_s)
    world.there.append("job-7")
    assert await launching == "job-7"
    assert world.submitted() == [NAME]


async def test_missing_job_is_submitted_again_once(made, clock):
    moments = []

    def submit(**_):
        moments.append(clock.now())
        return no_answer() if len(moments) == 1 else ACCEPTED

    world = made(submit_job=submit)
    assert await world.launcher.launch(JOB) == "job-1"
    assert world.submitted() == [NAME] * 2
    assert moments[1] - moments[0] >= Timing().listed_within_s
    await asyncio.sleep(3600)
    assert world.ended() == {}
    looked = world.looks()
    await asyncio.sleep(36000)
    assert world.looks() == looked  # the search ended


async def test_duplicate_job_is_terminated(made, caplog):
    world = made(submit_job=[no_answer(), ACCEPTED])
    assert await world.launcher.launch(JOB) == "job-1"
    await asyncio.sleep(20)
    world.there += ["job-1", "job-0"]
    while not world.ended():
        await asyncio.sleep(1)
    looked = world.looks()
    await asyncio.sleep(3600)
    assert world.looks() == looked  # the search ended
    ((ended, reason),) = world.ended().items()
    assert ended == "job-0"
    assert reason.endswith("it was submitted again, as job job-1")
    assert "job job-0 (hello-0123456789abcdef) appeared" in caplog.messages[-1]


async def test_two_lost_answers_keep_one_job(made):
    world = made(submit_job=lambda **_: no_answer())
    launching = asyncio.ensure_future(world.launcher.launch(JOB))
    while len(world.submitted()) < 2:
        await asyncio.sleep(1)
    world.there += ["job-2", "job-1"]
    assert await launching == "job-2"
    await asyncio.sleep(1)
    assert list(world.ended()) == ["job-1"]


async def test_job_after_failed_launch_is_terminated(made):
    world = made(submit_job=lambda **_: no_answer())
    with pytest.raises(ServiceError, match="tried 2 times"):
        await world.launcher.launch(JOB)
    assert world.submitted() == [NAME] * 2
    for job_id in ("job-1", "job-2"):  # one after the other, because the search ends after both
        world.there.append(job_id)
        await asyncio.sleep(60)
    assert list(world.ended()) == ["job-1", "job-2"]


async def test_close_warns_of_possible_job(made, caplog):
    world = made(submit_job=[no_answer(), ACCEPTED])
    await world.launcher.launch(JOB)
    await asyncio.sleep(60)
    await world.launcher.close()
    assert caplog.messages[-1].startswith(f"the request to submit job {NAME} was not answered. If")


async def test_deregistered_definition_is_registered_again(made):
    gone = refusal("ClientException", 400, "JobDefinition arn:1 is not ACTIVE")
    world = made(submit_job=[gone, ACCEPTED])
    known = iter([{"jobDefinitions": [{"jobDefinitionArn": "arn:1"}]}, {"jobDefinitions": []}])
    world.client.describe_job_definitions = lambda **_: asyncio.sleep(0, next(known))
    world.client.register_job_definition = lambda **_: asyncio.sleep(
        0, {"jobDefinitionArn": "arn:2"}
    )
    assert await world.launcher.launch(JOB) == "job-1"
    sent = [request["jobDefinition"] for request in world.client.asked("submit_job")]
    assert sent == ["arn:1", "arn:2"]


async def test_failed_search_for_late_job_is_repeated(made):
    world = made(submit_job=[no_answer(), ACCEPTED])
    assert await world.launcher.launch(JOB) == "job-1"
    world.client.list_jobs = Client(
        list_jobs=[refusal("AccessDeniedException", 403), listed("job-0")]
    ).list_jobs
    await asyncio.sleep(3600)
    assert list(world.ended()) == ["job-0"]


# --- cancelled --------------------------------------------------------------------------------


async def test_late_cancelled_job_is_terminated(made, clock):
    world = made(submit_job=[no_answer()])
    begun = clock.now()
    assert (await cancelled(world, after_s=1)).cancelled()
    assert clock.now() - begun < sum(Timing().submit_polls_s) + 10
    await asyncio.sleep(60)
    world.there.append("job-7")
    await asyncio.sleep(3600)
    assert list(world.ended()) == ["job-7"]
    assert world.submitted() == [NAME]


def test_group_variables_take_precedence():
    settings = Settings(
        environment={"A": "1", "B": "1"},
        secrets={"C": SECRET, "D": SECRET},
    )
    group = Nodes(1, "alpine", ["true"], env={"B": "2", "C": "2"}, secrets={"D": "other"})
    (merged,) = command_of(settings, [group], NAME, "me-1").groups
    assert merged.env == {"A": "1", "B": "2", "C": "2"}
    assert merged.secrets == {"D": "other"}
