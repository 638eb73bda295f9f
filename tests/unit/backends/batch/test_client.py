import asyncio
from types import SimpleNamespace

import pytest

from farcall.backends.batch.client import Batch
from farcall.backends.batch.documents import Definition
from farcall.model.errors import ServiceError, SettingsError
from farcall.model.jobs import JobStatus
from farcall.model.pacing import Ticket
from tests.unit.fakes import TIMING, Client, broken, no_answer, not_sent, refusal

REQUEST = {"jobName": "simulate-0a1b", "jobQueue": "queue", "jobDefinition": "arn:1"}
ACCEPTED = {"jobId": "job-1", "jobName": "simulate-0a1b"}
NOTHING = {"jobSummaryList": []}
THROTTLED = refusal("TooManyRequestsException", 429, "Too Many Requests")
DEFINITION = Definition("farcall-00", {"type": "container"})


def summaries(*names):
    return {
        "jobSummaryList": [{"jobId": f"id-{n}", "jobName": n, "status": "RUNNING"} for n in names]
    }


def made(timing=TIMING, **operations):
    """Return a Batch and its scripted client."""
    client = Client(**operations)
    return Batch(SimpleNamespace(batch=client, timing=timing)), client


# --- submission -------------------------------------------------------------------------------


async def submit(batch, request=REQUEST):
    return await batch.submit(request, Ticket())


async def test_job_is_submitted_with_one_request(clock):
    batch, client = made(submit_job=[ACCEPTED])
    assert await submit(batch) == "job-1"
    assert client.calls == [("submit_job", REQUEST)]


async def test_throttling_never_fails_submission(clock):
    batch, client = made(submit_job=[*[THROTTLED] * 50, ACCEPTED])
    assert await submit(batch) == "job-1"
    assert len(client.asked("submit_job")) == 51
    assert client.asked("list_jobs") == []


async def test_job_name_is_searched_across_pages(clock):
    """Batch may return an empty page and continue with another one."""
    pages = [
        {"jobSummaryList": [], "nextToken": "t"},
        {**summaries("Simulate-0A1B"), "nextToken": "u"},
        summaries("simulate-0a1b"),
    ]
    batch, client = made(list_jobs=pages)
    [found] = await batch.find_named("queue", "simulate-0a1b")
    assert found.job_id == "id-simulate-0a1b"
    wanted = {
        "jobQueue": "queue",
        "filters": [{"name": "JOB_NAME", "values": ["simulate-0a1b"]}],
    }
    assert client.asked("list_jobs") == [
        wanted,
        {**wanted, "nextToken": "t"},
        {**wanted, "nextToken": "u"},
    ]


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


async def test_existing_definition_is_not_registered(clock):
    batch, client = made(describe_job_definitions=[definitions(3, 12, 5)])
    found = await batch.ensure_definition(DEFINITION)
    assert found == "arn:aws:batch:us-east-1:1:job-definition/farcall-00:12"
    assert client.calls == [
        ("describe_job_definitions", {"jobDefinitionName": "farcall-00", "status": "ACTIVE"})
    ]


async def test_concurrent_callers_register_definition_once(clock):
    batch, client = made(describe_job_definitions=[definitions()], register_job_definition=[NEW])
    wanted = [batch.ensure_definition(DEFINITION) for _ in range(20)]
    assert set(await asyncio.gather(*wanted)) == {"arn:new:1"}
    assert client.asked("register_job_definition") == [
        {"jobDefinitionName": "farcall-00", "type": "container"}
    ]


async def test_concurrently_registered_definition_is_reused(clock):
    busy = refusal(
        "ClientException",
        400,
        "Too many concurrent attempts to create a new revision of the specified family.",
    )
    batch, _ = made(
        describe_job_definitions=[definitions(), definitions(1)], register_job_definition=[busy]
    )
    assert (await batch.ensure_definition(DEFINITION)).endswith("farcall-00:1")


async def test_rejected_definition_is_registered_next_time(clock):
    batch, _ = made(
        describe_job_definitions=lambda **_: definitions(),
        register_job_definition=[refusal("ClientException", 400, "bad role"), NEW],
    )
    with pytest.raises(SettingsError, match="bad role"):
        await batch.ensure_definition(DEFINITION)
    assert await batch.ensure_definition(DEFINITION) == "arn:new:1"


@pytest.mark.parametrize("failure", [no_answer(), refusal("ServerException", 500)])
async def test_unanswered_registration_is_searched_for(failure, clock):
    """Each registration makes a revision, whether it is answered or not."""
    batch, client = made(
        describe_job_definitions=[definitions(), definitions(1)], register_job_definition=[failure]
    )
    assert (await batch.ensure_definition(DEFINITION)).endswith("farcall-00:1")
    assert len(client.asked("register_job_definition")) == 1


async def test_failed_registration_is_repeated(clock):
    batch, _ = made(
        describe_job_definitions=lambda **_: definitions(),
        register_job_definition=[refusal("ServerException", 500), THROTTLED, NEW],
    )
    assert await batch.ensure_definition(DEFINITION) == "arn:new:1"


async def test_retries_of_busy_registration_are_limited(clock):
    busy = refusal("ClientException", 400, "Too many concurrent attempts to create a revision.")
    batch, _ = made(
        describe_job_definitions=lambda **_: definitions(),
        register_job_definition=lambda **_: busy,
    )
    with pytest.raises(ServiceError, match=r"Too many concurrent attempts.*; tried \d+ times"):
        await batch.ensure_definition(DEFINITION)


async def test_definition_is_registered_without_describe_permission(clock):
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
async def test_user_definition_is_found(expected, name, clock):
    def describe(*, jobDefinitions=(), **named):  # noqa: N803  # Batch's name
        """Answer like Batch: revisions have their own parameter, which excludes all others."""
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


async def test_newest_revision_is_found_across_pages(clock):
    """The old plugin registered a revision for each task."""
    pages = [{**definitions(*range(1, 101)), "nextToken": "t"}, definitions(*range(101, 121))]
    batch, client = made(describe_job_definitions=pages)
    found = await batch.find_definition("farcall-00")
    assert found is not None
    assert found["revision"] == 120
    assert client.calls[1][1]["nextToken"] == "t"


# --- jobs -------------------------------------------------------------------------------------


async def test_jobs_are_described_in_hundreds(clock):
    def describe(*, jobs):
        known = [job for job in jobs if job != "j7"]
        return {"jobs": [{"jobId": job, "jobName": "n", "status": "RUNNING"} for job in known]}

    batch, client = made(describe_jobs=describe)
    found = await batch.describe(f"j{n}" for n in range(250))
    assert [len(call["jobs"]) for call in client.asked("describe_jobs")] == [100, 100, 50]
    assert set(found) == {f"j{n}" for n in range(250)} - {"j7"}


async def test_empty_input_makes_no_requests(clock):
    batch, client = made()
    assert await batch.describe([]) == {}
    await batch.terminate([], "x")
    assert client.calls == []


async def test_array_tasks_are_listed_by_page(clock):
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
    pages = [page async for page in batch.list_children("p", JobStatus.FAILED)]
    assert [child.index for page in pages for child in page] == [0, 9]
    assert client.asked("list_jobs") == [
        {"arrayJobId": "p", "jobStatus": "FAILED"},
        {"arrayJobId": "p", "jobStatus": "FAILED", "nextToken": "t"},
    ]


@pytest.mark.parametrize(
    "failure", [no_answer(), not_sent(), broken(), refusal("ServerException", 500)]
)
async def test_failed_request_is_retried_for_seconds(failure, clock):
    batch, client = made(describe_jobs=[*[failure] * 3, {"jobs": []}])
    assert await batch.describe(["j"]) == {}
    assert len(client.calls) == 4
    batch, _ = made(describe_jobs=lambda **_: failure)
    begun = clock.now()
    with pytest.raises(ServiceError, match=r"DescribeJobs.*; tried \d+ times in 1\d s"):
        await batch.describe(["j"])
    assert 10 <= clock.now() - begun < 16


async def test_rejected_request_is_not_repeated(clock):
    batch, client = made(describe_jobs=[refusal("AccessDeniedException", 403)])
    with pytest.raises(ServiceError, match="need permission for DescribeJobs"):
        await batch.describe(["j"])
    assert len(client.calls) == 1


async def test_missing_queue_is_none(clock):
    queue = {"jobQueueName": "q", "state": "ENABLED"}
    batch, client = made(describe_job_queues=[{"jobQueues": [queue]}, {"jobQueues": []}])
    assert await batch.find_queue("q") == queue
    assert await batch.find_queue("r") is None
    assert client.asked("describe_job_queues") == [{"jobQueues": ["q"]}, {"jobQueues": ["r"]}]


async def test_queue_is_found_after_empty_page(clock):
    queue = {"jobQueueName": "q", "state": "ENABLED"}
    pages = [{"jobQueues": [], "nextToken": "t"}, {"jobQueues": [queue]}]
    batch, client = made(describe_job_queues=pages)
    assert await batch.find_queue("q") == queue
    assert client.asked("describe_job_queues")[1] == {"jobQueues": ["q"], "nextToken": "t"}


# --- lanes ------------------------------------------------------------------------------------


async def test_describe_calls_are_limited_per_second(clock):
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


async def test_single_query_overtakes_many(clock):
    batch, client = made(describe_jobs=lambda **_: {"jobs": []})
    many = asyncio.ensure_future(batch.describe(f"a{n}" for n in range(10_000)))
    await asyncio.sleep(5)
    begun = clock.now()
    await batch.describe(["b"])
    assert clock.now() - begun < 0.5
    assert not many.done()
    await many
    assert len(client.calls) == 101


async def test_terminate_overtakes_other_requests(clock):
    def answer(**_):
        return THROTTLED if clock.now() < free else ACCEPTED

    free = clock.now() + 100
    batch, client = made(
        submit_job=answer,
        describe_jobs=lambda **_: {"jobs": []},
        describe_job_queues=lambda **_: {"jobQueues": []},
        terminate_job=lambda **_: {},
    )
    requests = [{**REQUEST, "jobName": f"n-{n}"} for n in range(500)]
    busy = [asyncio.ensure_future(submit(batch, request)) for request in requests]
    busy.append(asyncio.ensure_future(batch.describe(f"j{n}" for n in range(10_000))))
    await asyncio.sleep(5)
    begun = clock.now()
    await batch.terminate(["j"], "enough")
    await batch.find_queue("q")
    assert clock.now() - begun < 0.1
    assert not any(task.done() for task in busy)
    await asyncio.gather(*busy)
    assert len({call["jobName"] for call in client.asked("submit_job")}) == 500


async def test_throttled_lane_does_not_slow_others(clock):
    batch, client = made(submit_job=lambda **_: THROTTLED, terminate_job=lambda **_: {})
    waiting = asyncio.ensure_future(submit(batch))
    await asyncio.sleep(30)
    begun = clock.now()
    await batch.terminate([f"j{n}" for n in range(21)], "enough")
    assert clock.now() - begun == pytest.approx(1, abs=0.1)  # 20 requests per second
    assert 30 < len(client.asked("submit_job")) < 200
    waiting.cancel()


async def test_lasting_throttling_is_logged(clock, caplog):
    batch, _ = made(describe_jobs=[*[THROTTLED] * 400, {"jobs": []}])
    await batch.describe(["j"])
    assert 2 <= len(caplog.messages) <= 5
    assert "TooManyRequestsException" in caplog.messages[0]


async def test_hour_of_throttling_raises(clock):
    batch, _ = made(describe_jobs=lambda **_: THROTTLED)
    begun = clock.now()
    with pytest.raises(ServiceError, match="all calls were throttled for 36.* what else in the"):
        await batch.describe(["j"])
    assert 3600 < clock.now() - begun < 3700


# --- terminations -----------------------------------------------------------------------------

IDS = [f"j{n}" for n in range(120)]


async def test_one_job_uses_terminate_job(clock):
    batch, client = made(terminate_job=lambda **_: {})
    await batch.terminate(["j1"], "enough")
    assert client.asked("terminate_job") == [{"jobId": "j1", "reason": "farcall: enough"}]


async def test_many_jobs_are_terminated_in_bulk(clock):
    batch, client = made(terminate_jobs=lambda **_: {"successful": [], "errors": []})
    await batch.terminate(IDS, "enough")
    asked = client.asked("terminate_jobs")
    assert [job for call in asked for job in call["jobs"]] == IDS
    assert max(len(call["jobs"]) for call in asked) <= 50
    assert {call["reason"] for call in asked} == {"farcall: enough"}


async def test_failed_termination_does_not_stop_others(clock):
    def terminate(*, jobId, **_):  # noqa: N803  # Batch's name
        return refusal("ServerException", 500) if jobId == "j3" else {}

    unknown = refusal("UnknownOperationException", 404)
    batch, client = made(terminate_jobs=lambda **_: unknown, terminate_job=terminate)
    refused = await batch.terminate(IDS, "enough")
    assert str(refused["j3"]).startswith("TerminateJob")
    asked = [call["jobId"] for call in client.asked("terminate_job")]
    assert asked[: len(IDS)] == IDS
    assert set(asked[len(IDS) :]) == {"j3"}


async def test_jobs_not_terminated_in_bulk_are_repeated(clock):
    failed = [
        {"job": job_id, "code": "ServerException", "message": "No"} for job_id in ("j1", "j2")
    ]
    batch, client = made(
        terminate_jobs=lambda **_: {"errors": failed},
        terminate_job=lambda jobId, **_: refusal("ClientException", 400) if jobId == "j1" else {},  # noqa: N803
    )
    assert list(await batch.terminate(["j0", "j1", "j2"], "enough")) == ["j1"]
    assert [call["jobId"] for call in client.asked("terminate_job")] == ["j1", "j2"]


@pytest.mark.parametrize(
    "answer",
    [
        refusal("404", 404),
        refusal("UnknownOperationException", 400),
        refusal("InternalFailure", 501, "not yet implemented"),
    ],
)
async def test_unknown_bulk_call_terminates_jobs_individually(clock, answer):
    batch, client = made(terminate_jobs=lambda **_: answer, terminate_job=lambda **_: {})
    await batch.terminate(IDS[:3], "enough")
    assert [call["jobId"] for call in client.asked("terminate_job")] == IDS[:3]
    assert len(client.asked("terminate_jobs")) == 1


async def test_rejected_bulk_call_is_not_unknown(clock):
    batch, client = made(terminate_jobs=lambda **_: refusal("ClientException", 400))
    assert list(await batch.terminate(["j0", "j1"], "enough")) == ["j0", "j1"]
    assert await batch.terminate(["j2", "j3"], "enough")
    assert len(client.asked("terminate_jobs")) == 2


async def test_denied_bulk_call_is_split(clock):
    denied = refusal("AccessDeniedException", 403)
    batch, client = made(
        terminate_jobs=lambda **_: denied,
        terminate_job=lambda jobId, **_: denied if jobId == "j1" else {},  # noqa: N803
    )
    assert list(await batch.terminate(["j0", "j1"], "enough")) == ["j1"]
    assert len(client.asked("terminate_job")) == 2
