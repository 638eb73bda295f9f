from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from farcall.batch import Batch
from farcall.definitions import Definition
from farcall.errors import ServiceError, SettingsError, SubmissionError
from farcall.states import JobStatus
from unit.fakes import Client, no_answer, refusal

REQUEST = {"jobName": "simulate-0a1b", "jobQueue": "queue", "jobDefinition": "arn:1"}
ACCEPTED = {"jobId": "job-1", "jobName": "simulate-0a1b"}
NOTHING = {"jobSummaryList": []}
THROTTLED = refusal("TooManyRequestsException", 429, "Too Many Requests")
DEFINITION = Definition("farcall-00", {"type": "container"})


def summaries(*names):
    return {"jobSummaryList": [{"jobId": f"id-{n}", "jobName": n, "status": "X"} for n in names]}


def made(**operations):
    """Make a Batch whose both clients are one; return the two."""
    client = Client(**operations)
    return Batch(SimpleNamespace(batch=client, submitter=client, region="us-east-1")), client


# --- submission -------------------------------------------------------------------------------


async def test_a_job_is_submitted_with_one_call(clock):
    batch, client = made(submit_job=[ACCEPTED])
    assert await batch.submit(REQUEST) == "job-1"
    assert client.calls == [("submit_job", REQUEST)]


async def test_a_job_whose_answer_was_lost_is_adopted(clock):
    """Exactly one job: it is found by its name, and not sent again."""
    batch, client = made(
        submit_job=[no_answer()], list_jobs=[NOTHING, NOTHING, summaries("simulate-0a1b")]
    )
    assert await batch.submit(REQUEST) == "id-simulate-0a1b"
    assert len(client.asked("submit_job")) == 1
    assert client.asked("list_jobs")[0] == {
        "jobQueue": "queue",
        "filters": [{"name": "JOB_NAME", "values": ["simulate-0a1b"]}],
    }


async def test_a_job_of_another_case_is_not_adopted(clock):
    batch, _ = made(
        submit_job=[no_answer(), ACCEPTED], list_jobs=lambda **_: summaries("Simulate-0A1B")
    )
    assert await batch.submit(REQUEST) == "job-1"


@pytest.mark.parametrize("failure", [no_answer(), refusal("ServerException", 500)])
async def test_a_job_that_is_not_found_is_sent_again(failure, clock):
    batch, client = made(submit_job=[failure, ACCEPTED], list_jobs=lambda **_: NOTHING)
    assert await batch.submit(REQUEST) == "job-1"
    assert len(client.asked("submit_job")) == 2
    assert len(client.asked("list_jobs")) == 5


async def test_sending_ends_after_some_tries(clock):
    batch, client = made(submit_job=lambda **_: no_answer(), list_jobs=lambda **_: NOTHING)
    with pytest.raises(ServiceError, match="SubmitJob"):
        await batch.submit(REQUEST)
    assert len(client.asked("submit_job")) == 5


async def test_throttling_never_fails_a_task(clock):
    batch, client = made(submit_job=[*[THROTTLED] * 50, ACCEPTED])
    assert await batch.submit(REQUEST) == "job-1"
    assert len(client.asked("submit_job")) == 51
    assert client.asked("list_jobs") == []


async def test_a_definition_that_batch_does_not_know_yet_is_waited_for(clock):
    unknown = refusal("ClientException", 404, "JobDefinition arn:1 not found")
    batch, _ = made(submit_job=[unknown, unknown, ACCEPTED])
    assert await batch.submit(REQUEST) == "job-1"


@pytest.mark.parametrize(
    ("expected", "failure"),
    [
        (SettingsError, refusal("ClientException", 404, "Job queue queue does not exist")),
        (SubmissionError, refusal("ClientException", 400, "Job size must be less than 30 KiB")),
        (ServiceError, refusal("AccessDeniedException", 403, "not authorized")),
    ],
)
async def test_a_refusal_is_final(expected, failure, clock):
    batch, client = made(submit_job=[failure])
    with pytest.raises(expected):
        await batch.submit(REQUEST)
    assert len(client.calls) == 1


async def test_a_refused_queue_is_named(clock):
    batch, _ = made(submit_job=[refusal("ClientException", 404, "Job queue queue not found")])
    with pytest.raises(SettingsError, match="batch_queue is 'queue'") as caught:
        await batch.submit(REQUEST)
    assert caught.value.option == "batch_queue"


# --- definitions ------------------------------------------------------------------------------


def definitions(*revisions, name="farcall-00"):
    return {
        "jobDefinitions": [
            {
                "jobDefinitionArn": f"arn:aws:batch:us-east-1:1:job-definition/{name}:{number}",
                "jobDefinitionName": name,
                "revision": number,
                "containerProperties": {"image": f"image:{number}"},
            }
            for number in revisions
        ]
    }


NEW = {"jobDefinitionArn": "arn:new:1"}


async def test_a_definition_that_exists_is_not_registered(clock):
    batch, client = made(describe_job_definitions=[definitions(3, 12, 5)])
    found = await batch.ensure_definition(DEFINITION)
    assert found == "arn:aws:batch:us-east-1:1:job-definition/farcall-00:12"
    assert client.calls == [
        ("describe_job_definitions", {"jobDefinitionName": "farcall-00", "status": "ACTIVE"})
    ]


async def test_a_definition_is_registered_once_for_all_who_want_it(clock):
    batch, client = made(describe_job_definitions=[definitions()], register_job_definition=[NEW])
    wanted = [batch.ensure_definition(DEFINITION) for _ in range(20)]
    assert set(await asyncio.gather(*wanted)) == {"arn:new:1"}
    assert client.asked("register_job_definition") == [
        {"jobDefinitionName": "farcall-00", "type": "container"}
    ]


async def test_a_definition_that_somebody_else_registers_is_taken_over(clock):
    busy = refusal(
        "ClientException",
        400,
        "Too many concurrent attempts to create a new revision of the specified family.",
    )
    batch, _ = made(
        describe_job_definitions=[definitions(), definitions(1)], register_job_definition=[busy]
    )
    assert (await batch.ensure_definition(DEFINITION)).endswith("farcall-00:1")


async def test_a_refused_definition_is_tried_anew_the_next_time(clock):
    batch, _ = made(
        describe_job_definitions=lambda **_: definitions(),
        register_job_definition=[refusal("ClientException", 400, "bad role"), NEW],
    )
    with pytest.raises(SettingsError, match="bad role"):
        await batch.ensure_definition(DEFINITION)
    assert await batch.ensure_definition(DEFINITION) == "arn:new:1"


async def test_without_the_right_to_look_a_definition_is_registered(clock):
    batch, _ = made(
        describe_job_definitions=[refusal("AccessDeniedException", 403)],
        register_job_definition=[NEW],
    )
    assert await batch.ensure_definition(DEFINITION) == "arn:new:1"


ARN = "arn:aws:batch:us-east-1:123456789012:job-definition/mine"


@pytest.mark.parametrize(
    ("expected", "name"),
    [(12, "mine"), (3, "mine:3"), (12, ARN), (3, f"{ARN}:3")],
)
async def test_a_user_s_definition_is_found_by_name_revision_and_arn(expected, name, clock):
    def describe(*, jobDefinitions=(), **named):  # noqa: N803  # Batch's name
        """Answer as Batch does: revisions by their own parameter, which excludes all others."""
        assert bool(jobDefinitions) != bool(named)
        if not jobDefinitions:
            wanted = named["jobDefinitionName"]
            return definitions(*([3, 12] if wanted == "mine" else []), name="mine")
        assert jobDefinitions[0] in ("mine:3", f"{ARN}:3")
        return definitions(3, name="mine")

    batch, _ = made(describe_job_definitions=describe)
    found = await batch.find_definition(name)
    assert found is not None
    assert found["revision"] == expected


async def test_the_newest_of_many_revisions_is_found_on_any_page(clock):
    """The old plugin registered a revision for each task."""
    pages = [{**definitions(*range(1, 101)), "nextToken": "t"}, definitions(*range(101, 121))]
    batch, client = made(describe_job_definitions=pages)
    found = await batch.find_definition("farcall-00")
    assert found is not None
    assert found["revision"] == 120
    assert client.calls[1][1]["nextToken"] == "t"


# --- jobs -------------------------------------------------------------------------------------


async def test_jobs_are_described_a_hundred_at_a_time(clock):
    def describe(*, jobs):
        known = [job for job in jobs if job != "j7"]
        return {"jobs": [{"jobId": job, "jobName": "n", "status": "RUNNING"} for job in known]}

    batch, client = made(describe_jobs=describe)
    found = await batch.describe(f"j{n}" for n in range(250))
    assert [len(call["jobs"]) for call in client.asked("describe_jobs")] == [100, 100, 50]
    assert set(found) == {f"j{n}" for n in range(250)} - {"j7"}


async def test_nothing_is_asked_about_no_jobs(clock):
    batch, client = made()
    assert await batch.describe([]) == {}
    await batch.terminate([], "x")
    assert client.calls == []


async def test_children_are_listed_page_by_page(clock):
    pages = [
        {
            "jobSummaryList": [
                {"jobId": "p:0", "jobName": "n", "status": "FAILED"},
                {"jobId": "p:7", "jobName": "n", "status": "RUNNING"},
            ],
            "nextToken": "t",
        },
        {"jobSummaryList": [{"jobId": "p:9", "jobName": "n", "status": "FAILED"}]},
    ]
    batch, client = made(list_jobs=pages)
    assert await batch.list_children("p", JobStatus.FAILED) == [0, 9]
    assert client.asked("list_jobs") == [
        {"arrayJobId": "p", "jobStatus": "FAILED"},
        {"arrayJobId": "p", "jobStatus": "FAILED", "nextToken": "t"},
    ]


async def test_a_throttled_question_is_asked_again(clock):
    batch, client = made(describe_jobs=[THROTTLED, THROTTLED, {"jobs": []}])
    assert await batch.describe(["j"]) == {}
    assert len(client.calls) == 3


# --- the end of jobs --------------------------------------------------------------------------

IDS = [f"j{n}" for n in range(120)]


async def test_jobs_are_ended_in_bulk_where_the_client_can(clock):
    batch, client = made(terminate_jobs=lambda **_: {"successful": [], "errors": []})
    await batch.terminate(IDS, "enough")
    asked = client.asked("terminate_jobs")
    assert [job for call in asked for job in call["jobs"]] == IDS
    assert max(len(call["jobs"]) for call in asked) <= 50
    assert {call["reason"] for call in asked} == {"farcall: enough"}


async def test_jobs_are_ended_one_by_one_where_it_cannot(clock):
    batch, client = made(terminate_job=lambda **_: {})
    await batch.terminate(IDS, "enough")
    assert [call["jobId"] for call in client.asked("terminate_job")] == IDS


async def test_one_job_that_cannot_be_ended_keeps_no_other_alive(clock):
    def terminate(*, jobId, **_):  # noqa: N803  # Batch's name
        return refusal("ServerException", 500) if jobId == "j3" else {}

    batch, client = made(terminate_job=terminate)
    with pytest.raises(ServiceError, match="TerminateJob"):
        await batch.terminate(IDS, "enough")
    await asyncio.sleep(60)
    assert [call["jobId"] for call in client.asked("terminate_job")] == IDS


async def test_jobs_throttled_within_a_bulk_are_asked_for_again(clock):
    throttled = {"job": "j1", "code": "ThrottlingException", "message": "Rate exceeded"}
    batch, client = made(
        terminate_jobs=[
            {"successful": [{"job": "j0"}], "errors": [throttled]},
            {"successful": [{"job": "j1"}], "errors": []},
        ]
    )
    await batch.terminate(["j0", "j1"], "enough")
    assert [call["jobs"] for call in client.asked("terminate_jobs")] == [["j0", "j1"], ["j1"]]
