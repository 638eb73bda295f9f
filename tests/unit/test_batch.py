from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from farcall.batch import Batch
from farcall.definitions import Definition
from farcall.details import JobStatus
from farcall.errors import ServiceError, SettingsError, SubmissionError
from unit.fakes import Client, broken, no_answer, not_sent, refusal

REQUEST = {"jobName": "simulate-0a1b", "jobQueue": "queue", "jobDefinition": "arn:1"}
ACCEPTED = {"jobId": "job-1", "jobName": "simulate-0a1b"}
NOTHING = {"jobSummaryList": []}
THROTTLED = refusal("TooManyRequestsException", 429, "Too Many Requests")
DEFINITION = Definition("farcall-00", {"type": "container"})


def summaries(*names):
    return {"jobSummaryList": [{"jobId": f"id-{n}", "jobName": n, "status": "X"} for n in names]}


def made(**operations):
    """Make a Batch and its client; return the two."""
    client = Client(**operations)
    return Batch(SimpleNamespace(batch=client)), client


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


async def test_sending_ends_after_a_minute(clock):
    begun = clock.now()
    batch, client = made(submit_job=lambda **_: no_answer(), list_jobs=lambda **_: NOTHING)
    with pytest.raises(ServiceError, match=r"SubmitJob: .*; tried \d+ times in \d+ s") as caught:
        await batch.submit(REQUEST)
    assert 60 <= clock.now() - begun < 80
    assert f"tried {len(client.asked('submit_job'))} times" in str(caught.value)


async def test_a_request_that_was_not_sent_needs_no_look(clock):
    batch, client = made(submit_job=[not_sent(), not_sent(), ACCEPTED])
    assert await batch.submit(REQUEST) == "job-1"
    assert client.asked("list_jobs") == []


async def test_a_connection_that_breaks_after_the_request_is_followed_by_a_look(clock):
    """aiobotocore says of it what it says of a connection that could not be made."""
    batch, client = made(submit_job=[broken()], list_jobs=[summaries("simulate-0a1b")])
    assert await batch.submit(REQUEST) == "id-simulate-0a1b"
    assert len(client.asked("submit_job")) == 1


async def test_the_look_lasts_longer_than_the_network_is_gone(clock):
    """To give up would leave a job that nobody knows of."""
    away = clock.now() + 240

    def look(**_):
        return not_sent() if clock.now() < away else summaries("simulate-0a1b")

    batch, client = made(submit_job=[no_answer()], list_jobs=look)
    assert await batch.submit(REQUEST) == "id-simulate-0a1b"
    assert len(client.asked("submit_job")) == 1


async def test_a_look_that_fails_says_that_the_job_may_run(clock):
    denied = refusal("AccessDeniedException", 403, "not authorized")
    batch, client = made(submit_job=[no_answer()], list_jobs=[denied])
    with pytest.raises(ServiceError, match="SubmitJob.*whether job simulate-0a1b.*ListJobs"):
        await batch.submit(REQUEST)
    assert len(client.asked("submit_job")) == 1


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


# --- submission, cancelled --------------------------------------------------------------------


class Slow:
    """Answers SubmitJob when it is told to."""

    def __init__(self, reply=ACCEPTED):
        self.reply = reply
        self.answers = asyncio.Event()
        self.asked = 0

    async def submit_job(self, **_):
        self.asked += 1
        await self.answers.wait()
        if isinstance(self.reply, Exception):
            raise self.reply
        return self.reply


async def cancelled(batch, *, after_s, request=REQUEST):
    sending = asyncio.ensure_future(batch.submit(request))
    await asyncio.sleep(after_s)
    sending.cancel()
    return sending


async def test_a_request_that_waits_for_its_turn_is_taken_back(clock):
    batch, client = made(submit_job=lambda **_: ACCEPTED)
    others = [asyncio.ensure_future(batch.submit(REQUEST)) for _ in range(100)]
    sending = await cancelled(batch, after_s=0.5, request={**REQUEST, "jobName": "not-wanted"})
    await asyncio.sleep(0)
    assert sending.cancelled()
    await asyncio.gather(*others)
    assert client.asked("submit_job") == [REQUEST] * 100


async def test_a_request_that_is_refused_again_and_again_is_taken_back(clock):
    batch, client = made(submit_job=lambda **_: THROTTLED)
    sending = await cancelled(batch, after_s=60)
    await asyncio.sleep(0)
    assert sending.cancelled()
    asked = len(client.calls)
    await asyncio.sleep(60)
    assert len(client.calls) == asked


@pytest.mark.parametrize("reply", [THROTTLED, no_answer(), not_sent()])
async def test_a_request_on_its_way_that_comes_to_nothing_is_not_repeated(reply, clock):
    batch, client = made(list_jobs=lambda **_: NOTHING)
    slow = Slow(reply)
    client.submit_job = slow.submit_job
    sending = await cancelled(batch, after_s=1)
    slow.answers.set()
    await asyncio.sleep(60)
    assert sending.cancelled()
    assert slow.asked == 1


async def test_a_job_that_is_accepted_after_all_is_terminated(clock):
    batch, client = made(terminate_job=lambda **_: {})
    slow = Slow()
    client.submit_job = slow.submit_job
    sending = await cancelled(batch, after_s=1)
    await asyncio.sleep(1)
    assert not sending.done()
    slow.answers.set()
    await asyncio.gather(sending, return_exceptions=True)
    assert sending.cancelled()
    assert [call["jobId"] for call in client.asked("terminate_job")] == ["job-1"]


async def test_a_job_whose_answer_was_lost_is_looked_for_and_terminated(clock):
    batch, client = made(
        submit_job=[no_answer()],
        list_jobs=[NOTHING, summaries("simulate-0a1b")],
        terminate_job=lambda **_: {},
    )
    sending = await cancelled(batch, after_s=0.3)
    await asyncio.gather(sending, return_exceptions=True)
    assert sending.cancelled()
    assert [call["jobId"] for call in client.asked("terminate_job")] == ["id-simulate-0a1b"]


async def test_a_job_that_is_refused_after_all_is_no_trouble(clock, caplog):
    batch, client = made()
    slow = Slow(refusal("ClientException", 400, "no"))
    client.submit_job = slow.submit_job
    sending = await cancelled(batch, after_s=1)
    slow.answers.set()
    await asyncio.gather(sending, return_exceptions=True)
    assert sending.cancelled()
    assert not caplog.messages


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


@pytest.mark.parametrize("failure", [no_answer(), refusal("ServerException", 500)])
async def test_a_registration_without_an_answer_is_followed_by_a_look(failure, clock):
    """Each registration makes a revision, answered or not."""
    batch, client = made(
        describe_job_definitions=[definitions(), definitions(1)], register_job_definition=[failure]
    )
    assert (await batch.ensure_definition(DEFINITION)).endswith("farcall-00:1")
    assert len(client.asked("register_job_definition")) == 1


async def test_a_registration_that_did_nothing_is_made_again(clock):
    batch, _ = made(
        describe_job_definitions=lambda **_: definitions(),
        register_job_definition=[refusal("ServerException", 500), THROTTLED, NEW],
    )
    assert await batch.ensure_definition(DEFINITION) == "arn:new:1"


async def test_others_that_keep_registering_are_not_waited_for_for_ever(clock):
    busy = refusal("ClientException", 400, "Too many concurrent attempts to create a revision.")
    batch, _ = made(
        describe_job_definitions=lambda **_: definitions(),
        register_job_definition=lambda **_: busy,
    )
    with pytest.raises(ServiceError, match=r"Too many concurrent attempts.*; tried \d+ times"):
        await batch.ensure_definition(DEFINITION)


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
    batch, client = made(describe_jobs=[*[THROTTLED] * 50, {"jobs": []}])
    assert await batch.describe(["j"]) == {}
    assert len(client.calls) == 51


@pytest.mark.parametrize(
    "failure", [no_answer(), not_sent(), broken(), refusal("ServerException", 500)]
)
async def test_a_question_that_fails_is_asked_again_for_some_seconds(failure, clock):
    batch, client = made(describe_jobs=[*[failure] * 3, {"jobs": []}])
    assert await batch.describe(["j"]) == {}
    assert len(client.calls) == 4
    batch, _ = made(describe_jobs=lambda **_: failure)
    begun = clock.now()
    with pytest.raises(ServiceError, match=r"DescribeJobs.*; tried \d+ times in 1\d s"):
        await batch.describe(["j"])
    assert 10 <= clock.now() - begun < 16


async def test_a_refused_question_is_not_asked_again(clock):
    batch, client = made(describe_jobs=[refusal("AccessDeniedException", 403)])
    with pytest.raises(ServiceError, match="need permission for DescribeJobs"):
        await batch.describe(["j"])
    assert len(client.calls) == 1


async def test_a_queue_is_found_or_not(clock):
    queue = {"jobQueueName": "q", "state": "ENABLED"}
    batch, client = made(describe_job_queues=[{"jobQueues": [queue]}, {"jobQueues": []}])
    assert await batch.find_queue("q") == queue
    assert await batch.find_queue("r") is None
    assert client.asked("describe_job_queues") == [{"jobQueues": ["q"]}, {"jobQueues": ["r"]}]


# --- lanes ------------------------------------------------------------------------------------


async def test_ten_thousand_jobs_are_asked_for_at_five_calls_a_second(clock):
    moments = []

    def describe(**_):
        moments.append(clock.now())
        return {"jobs": []}

    batch, _ = made(describe_jobs=describe)
    await asyncio.gather(
        batch.describe(f"a{n}" for n in range(10_000)),
        batch.describe(["b"]),
        batch.describe(["c"]),
    )
    assert len(moments) == 102
    assert all(moments[at + 5] - moments[at] >= 1 - 1e-6 for at in range(len(moments) - 5))


async def test_a_single_question_is_answered_in_the_midst_of_many(clock):
    batch, client = made(describe_jobs=lambda **_: {"jobs": []})
    many = asyncio.ensure_future(batch.describe(f"a{n}" for n in range(10_000)))
    await asyncio.sleep(5)
    begun = clock.now()
    await batch.describe(["b"])
    assert clock.now() - begun < 0.5
    assert not many.done()
    await many
    assert len(client.calls) == 101


async def test_the_end_of_a_job_waits_for_no_submission_and_no_question(clock):
    def submit(**_):
        return THROTTLED if clock.now() < free else ACCEPTED

    free = clock.now() + 100
    batch, client = made(
        submit_job=submit,
        describe_jobs=lambda **_: {"jobs": []},
        describe_job_queues=lambda **_: {"jobQueues": []},
        terminate_job=lambda **_: {},
    )
    requests = [{**REQUEST, "jobName": f"n-{n}"} for n in range(500)]
    busy = [asyncio.ensure_future(batch.submit(request)) for request in requests]
    busy.append(asyncio.ensure_future(batch.describe(f"j{n}" for n in range(10_000))))
    await asyncio.sleep(5)
    begun = clock.now()
    await batch.terminate(["j"], "enough")
    await batch.find_queue("q")
    assert clock.now() - begun < 0.1
    assert not any(task.done() for task in busy)
    await asyncio.gather(*busy)
    assert len({call["jobName"] for call in client.asked("submit_job")}) == 500


async def test_a_throttled_lane_slows_no_other_down(clock):
    batch, client = made(submit_job=lambda **_: THROTTLED, terminate_job=lambda **_: {})
    waiting = asyncio.ensure_future(batch.submit(REQUEST))
    await asyncio.sleep(30)
    begun = clock.now()
    await batch.terminate([f"j{n}" for n in range(21)], "enough")
    assert clock.now() - begun == pytest.approx(1, abs=0.1)  # 20 a second
    assert 30 < len(client.asked("submit_job")) < 200
    waiting.cancel()


async def test_throttling_without_an_end_is_told(clock, caplog):
    batch, _ = made(describe_jobs=[*[THROTTLED] * 400, {"jobs": []}])
    await batch.describe(["j"])
    assert 2 <= len(caplog.messages) <= 5
    assert "TooManyRequestsException" in caplog.messages[0]


async def test_an_hour_of_nothing_but_throttling_is_told(clock):
    batch, _ = made(describe_jobs=lambda **_: THROTTLED)
    begun = clock.now()
    with pytest.raises(ServiceError, match="nothing else was answered for 36.* what else calls"):
        await batch.describe(["j"])
    assert 3600 < clock.now() - begun < 3700


async def test_credentials_that_are_renewed_meanwhile_cost_nothing(clock):
    expired = refusal("ExpiredTokenException", 403)
    batch, client = made(submit_job=[expired, expired, ACCEPTED])
    assert await batch.submit(REQUEST) == ACCEPTED["jobId"]
    batch, client = made(submit_job=lambda **_: expired)
    with pytest.raises(ServiceError, match="renew the credentials"):
        await batch.submit(REQUEST)
    assert len(client.calls) == 4  # and ListJobs was not among them
    assert len(client.asked("submit_job")) == 4


async def test_a_second_cancel_does_not_lose_a_job_that_is_being_accepted(clock):
    async def submit(**_):
        await asyncio.sleep(5)
        return ACCEPTED

    batch, client = made(submit_job=submit, terminate_job=lambda **_: {})
    waiting = asyncio.ensure_future(batch.submit(REQUEST))
    for _ in range(2):
        await asyncio.sleep(1)
        waiting.cancel()
    await asyncio.sleep(10)
    assert waiting.cancelled()
    assert [call["jobId"] for call in client.asked("terminate_job")] == [ACCEPTED["jobId"]]


async def test_a_page_of_html_is_no_answer(clock):
    page = {"ResponseMetadata": {"HTTPHeaders": {"content-type": "text/html"}}}
    job = {"jobSummaryList": [{"jobId": "j-1", "jobName": REQUEST["jobName"]}]}
    batch, client = made(submit_job=[page], list_jobs=[page, job])
    client.meta.endpoint_url = "http://proxy"
    assert await batch.submit(REQUEST) == "j-1"


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
    asked = [call["jobId"] for call in client.asked("terminate_job")]
    assert asked[: len(IDS)] == IDS
    assert set(asked[len(IDS) :]) == {"j3"}


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


async def test_jobs_that_are_refused_within_a_bulk_are_told(clock):
    refused = {"job": "j1", "code": "ClientException", "message": "No"}
    batch, _ = made(terminate_jobs=lambda **_: {"errors": [refused]})
    assert list(await batch.terminate_each(["j0", "j1", "j2"], "enough")) == ["j1"]
    with pytest.raises(ServiceError, match="TerminateJobs of j1: No"):
        await batch.terminate(["j0", "j1"], "enough")


async def test_jobs_that_fail_within_a_bulk_are_asked_for_again_and_told(clock):
    failed = {"job": "j1", "code": "ServerException", "message": "Sorry"}
    batch, client = made(terminate_jobs=lambda **_: {"errors": [failed]})
    with pytest.raises(ServiceError, match="TerminateJobs of j1: Sorry; tried"):
        await batch.terminate(["j0", "j1"], "enough")
    first, *others = [call["jobs"] for call in client.asked("terminate_jobs")]
    assert first == ["j0", "j1"]
    assert others
    assert all(jobs == ["j1"] for jobs in others)
