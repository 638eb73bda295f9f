"""Launching a command job once, by a scripted Batch."""

from __future__ import annotations

import asyncio

import pytest

from farcall import Nodes, ServiceError, Settings, SettingsError, SubmissionError
from farcall.backends.base import JobSpec
from farcall.engine.sender import Launcher
from farcall.model.timing import Timing
from tests.unit.fakes import Client, ScriptedBatch, broken, no_answer, not_sent, refusal

NAME = "hello-0123456789abcdef"
ACCEPTED = {"jobId": "job-1"}
SETTINGS = Settings(queue="queue", vcpu=1)
JOB = JobSpec(NAME, 1, {}, SETTINGS, (Nodes(1, "alpine", ["true"]),))
LOOKS = len(Timing().submit_looks_s)
THROTTLED = refusal("TooManyRequestsException", 429, "Too Many Requests")


def listed(*job_ids, name=NAME):
    return {
        "jobSummaryList": [
            {"jobId": each, "jobName": name, "status": "RUNNING"} for each in job_ids
        ]
    }


class World:
    """A launcher, and a Batch that answers by script.

    Attributes:
        there: The jobs that Batch lists.
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
    """Cancel a launch that is under way; return its task."""
    launching = asyncio.ensure_future(world.launcher.launch(JOB))
    await asyncio.sleep(after_s)
    launching.cancel()
    await asyncio.gather(launching, return_exceptions=True)
    return launching


# --- answers ----------------------------------------------------------------------------------


async def test_a_job_is_submitted_with_one_request_and_not_looked_for(made):
    world = made(submit_job=[ACCEPTED])
    assert await world.launcher.launch(JOB) == "job-1"
    await asyncio.sleep(3600)
    assert world.submitted() == [NAME]
    assert world.looks() == 0


@pytest.mark.parametrize(
    ("expected", "failure"),
    [
        (SettingsError, refusal("ClientException", 404, "Job queue queue does not exist")),
        (SubmissionError, refusal("ClientException", 400, "Job size must be less than 30 KiB")),
        (ServiceError, refusal("AccessDeniedException", 403, "not authorized")),
    ],
)
async def test_a_refusal_is_final(expected, failure, made):
    world = made(submit_job=[failure])
    with pytest.raises(expected):
        await world.launcher.launch(JOB)
    await asyncio.sleep(3600)
    assert len(world.submitted()) == 1
    assert world.looks() == 0


async def test_what_was_not_sent_or_came_too_fast_is_sent_again_without_a_look(made):
    world = made(submit_job=[not_sent(), THROTTLED, THROTTLED, not_sent(), ACCEPTED])
    assert await world.launcher.launch(JOB) == "job-1"
    await asyncio.sleep(3600)
    assert world.submitted() == [NAME] * 5
    assert world.looks() == 0


# --- no answer --------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [no_answer(), broken(), refusal("ServerException", 500)])
async def test_a_job_whose_answer_was_lost_is_adopted(failure, made):
    world = made(submit_job=[failure])
    launching = asyncio.ensure_future(world.launcher.launch(JOB))
    await asyncio.sleep(2)
    world.there.append("job-7")
    assert await launching == "job-7"
    assert world.submitted() == [NAME]
    await asyncio.sleep(3600)
    assert world.ended() == {}


async def test_a_job_is_adopted_that_is_listed_only_after_minutes(made, clock):
    world = made(submit_job=[no_answer()])
    launching = asyncio.ensure_future(world.launcher.launch(JOB))
    await asyncio.sleep(Timing().listed_within_s)
    world.there.append("job-7")
    assert await launching == "job-7"
    assert world.submitted() == [NAME]


async def test_a_job_that_never_was_is_submitted_again_once_under_its_name(made, clock):
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
    assert world.looks() == looked  # not forever


async def test_of_two_jobs_the_one_that_nobody_knows_of_is_ended(made, caplog):
    world = made(submit_job=[no_answer(), ACCEPTED])
    assert await world.launcher.launch(JOB) == "job-1"
    await asyncio.sleep(20)
    world.there += ["job-1", "job-0"]
    await asyncio.sleep(3600)
    ((ended, reason),) = world.ended().items()
    assert ended == "job-0"
    assert reason.endswith("it was submitted again, as job job-1")
    assert "job job-0 (hello-0123456789abcdef) turned up" in caplog.messages[-1]


async def test_of_two_lost_answers_both_jobs_turn_up_and_one_is_kept(made):
    world = made(submit_job=lambda **_: no_answer())
    launching = asyncio.ensure_future(world.launcher.launch(JOB))
    while len(world.submitted()) < 2:
        await asyncio.sleep(1)
    world.there += ["job-2", "job-1"]
    assert await launching == "job-2"
    await asyncio.sleep(1)
    assert list(world.ended()) == ["job-1"]


async def test_a_job_that_turns_up_after_the_last_request_was_given_up_is_ended(made):
    world = made(submit_job=lambda **_: no_answer())
    with pytest.raises(ServiceError, match="tried 2 times"):
        await world.launcher.launch(JOB)
    assert world.submitted() == [NAME] * 2
    world.there += ["job-1", "job-2"]
    await asyncio.sleep(3600)
    assert set(world.ended()) == {"job-1", "job-2"}


async def test_a_look_that_fails_says_that_the_job_may_run_and_ends_nothing(made):
    denied = refusal("AccessDeniedException", 403, "not authorized")
    world = made(submit_job=[no_answer()], list_jobs=lambda **_: denied)
    with pytest.raises(ServiceError, match="SubmitJob.*whether job hello-.*ListJobs"):
        await world.launcher.launch(JOB)
    await asyncio.sleep(3600)
    assert len(world.submitted()) == 1
    assert world.ended() == {}


async def test_a_job_of_another_case_is_not_adopted(made):
    others = listed("job-9", name=NAME.upper())
    world = made(submit_job=[no_answer(), ACCEPTED], list_jobs=lambda **_: others)
    assert await world.launcher.launch(JOB) == "job-1"
    await asyncio.sleep(3600)
    assert world.ended() == {}


async def test_who_leaves_is_told_of_a_job_that_might_turn_up(made, caplog):
    world = made(submit_job=[no_answer(), ACCEPTED])
    await world.launcher.launch(JOB)
    await asyncio.sleep(60)
    await world.launcher.close()
    assert caplog.messages[-1].startswith(
        f"the request to submit job {NAME} was not answered; should"
    )


async def test_a_definition_that_was_deregistered_meanwhile_is_made_anew(made):
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


# --- cancelled --------------------------------------------------------------------------------


async def test_a_launch_that_is_cancelled_before_its_turn_sends_nothing(made):
    world = made(submit_job=lambda **_: THROTTLED)
    launching = await cancelled(world, after_s=30)
    sent = len(world.submitted())
    await asyncio.sleep(600)
    assert launching.cancelled()
    assert len(world.submitted()) == sent
    assert world.ended() == {}


async def test_a_launch_that_is_cancelled_while_it_is_answered_ends_its_job(made):
    async def submit(**_):
        await asyncio.sleep(3)
        return ACCEPTED

    world = made(submit_job=submit)
    assert (await cancelled(world, after_s=1)).cancelled()
    assert list(world.ended()) == ["job-1"]


async def test_a_launch_that_is_cancelled_while_its_job_is_looked_for_ends_it(made):
    world = made(submit_job=[no_answer()])
    launching = asyncio.ensure_future(cancelled(world, after_s=1))
    await asyncio.sleep(5)
    world.there.append("job-7")
    assert (await launching).cancelled()
    assert list(world.ended()) == ["job-7"]


async def test_who_cancels_waits_for_a_short_look_and_what_turns_up_later_is_ended(made, clock):
    world = made(submit_job=[no_answer()])
    begun = clock.now()
    assert (await cancelled(world, after_s=1)).cancelled()
    assert clock.now() - begun < sum(Timing().submit_looks_s) + 10
    await asyncio.sleep(60)
    world.there.append("job-7")
    await asyncio.sleep(3600)
    assert list(world.ended()) == ["job-7"]
    assert world.submitted() == [NAME]
