"""SubmitJob on a scripted Batch, with an in-memory store instead of S3."""

import asyncio

import obstore
import pytest
from obstore.store import MemoryStore

from farcall import Settings
from farcall.backends.base import JobSpec
from farcall.engine.sender import Sender
from farcall.model.errors import ServiceError, SettingsError, SubmissionError
from farcall.model.pacing import Ticket
from farcall.model.timing import Timing
from farcall.model.workflows import Workflow
from farcall.payload.bundle import Bundle
from farcall.payload.pickling import pack_calls, pack_function
from farcall.storage.store import Store
from tests.unit.fakes import (
    Client,
    ScriptedBatch,
    access_in_memory,
    broken,
    no_answer,
    not_sent,
    refusal,
)

ACCEPTED = {"jobId": "job-1"}
NOTHING = {"jobSummaryList": []}
THROTTLED = refusal("TooManyRequestsException", 429, "Too Many Requests")
FUNCTION = pack_function(abs)
(ARGUMENTS,) = pack_calls([[((1,), {})]])
SETTINGS = Settings(s3_bucket_name="bucket", queue="queue", image="image")
LOOKS = len(Timing().submit_polls_s)


def listed(name):
    """Return a ListJobs response with the job of that name."""
    return {"jobSummaryList": [{"jobId": f"id-{name}", "jobName": name, "status": "RUNNING"}]}


class World:
    """Bundle in the bucket, a sender, and a scripted Batch."""

    def __init__(self, timing, **operations):
        known = {"jobDefinitions": [{"jobDefinitionArn": "arn:1"}]}
        self.client = Client(describe_job_definitions=lambda **_: known, **operations)
        self.backend = ScriptedBatch(self.client)
        memory = MemoryStore()
        self.store = Store("bucket", access_in_memory(Timing(), memory))
        self.sender = Sender(self.backend, self.store, timing)
        self.bundle = Bundle(
            SETTINGS,
            "v1/run",
            "simulate",
            iter([(FUNCTION, ARGUMENTS)]),
            Workflow("w"),
            most=10_000,
        )
        self.first = self.bundle.where
        self.name = self.first.bundle
        self.ticket = Ticket()
        self.notified = []
        self.data = b"".join(self.bundle.pieces())
        obstore.put(memory, self.first.bundle_key, self.data)

    async def send(self):
        return await self.sender.send(self.bundle, self.write, self.ticket, self.tell)

    def write(self):
        return JobSpec(self.bundle.where.bundle, 1, {}, SETTINGS)

    async def tell(self, where):
        self.notified.append(where)

    async def keys(self):
        await self.store.flush()
        return [key for key, _ in await self.store.list_keys("v1/run/bundles/")]

    def submitted(self):
        return [request["jobName"] for request in self.client.asked("submit_job")]


@pytest.fixture
async def made(clock, timing):
    worlds = []

    def make(**operations):
        worlds.append(World(timing, **operations))
        return worlds[-1]

    yield make
    for world in worlds:
        await world.sender.close()


# --- answers ----------------------------------------------------------------------------------


async def test_job_is_submitted_with_one_request(made):
    world = made(submit_job=[ACCEPTED])
    assert await world.send() == "job-1"
    assert world.submitted() == [world.name]
    assert await world.keys() == [world.first.bundle_key]
    assert world.notified == []


@pytest.mark.parametrize(
    ("expected", "failure"),
    [
        (SettingsError, refusal("ClientException", 404, "Job queue queue does not exist")),
        (SubmissionError, refusal("ClientException", 400, "Job size must be less than 30 KiB")),
        (ServiceError, refusal("AccessDeniedException", 403, "not authorized")),
    ],
)
async def test_refusal_is_final(expected, failure, made):
    world = made(submit_job=[failure])
    with pytest.raises(expected):
        await world.send()
    assert len(world.submitted()) == 1
    assert world.client.asked("list_jobs") == []


async def test_unknown_definition_is_retried(made):
    unknown = refusal("ClientException", 404, "JobDefinition arn:1 not found")
    assert await made(submit_job=[unknown, unknown, ACCEPTED]).send() == "job-1"


async def test_unsent_request_needs_no_search(made):
    world = made(submit_job=[not_sent(), not_sent(), ACCEPTED])
    assert await world.send() == "job-1"
    assert world.client.asked("list_jobs") == []
    assert world.submitted() == [world.name] * 3


async def test_expired_credentials_are_retried(made):
    expired = refusal("ExpiredTokenException", 403)
    assert await made(submit_job=[expired, expired, ACCEPTED]).send() == "job-1"
    world = made(submit_job=lambda **_: expired)
    with pytest.raises(ServiceError, match="renew the credentials"):
        await world.send()
    assert len(world.submitted()) == 4
    assert world.client.asked("list_jobs") == []
    assert len(world.submitted()) == 4


# --- no answer: the job is searched for -------------------------------------------------------


@pytest.mark.parametrize("failure", [no_answer(), broken()])
async def test_job_with_lost_answer_is_adopted(failure, made):
    """aiobotocore reports a broken connection like one that could not be made."""
    world = made(submit_job=[failure])
    lists = iter([NOTHING, NOTHING, listed(world.name)])
    world.client.list_jobs = lambda **_: asyncio.sleep(0, next(lists))
    assert await world.send() == f"id-{world.name}"
    assert world.submitted() == [world.name]
    assert await world.keys() == [world.first.bundle_key]


async def test_html_response_is_no_answer(made):
    page = {"ResponseMetadata": {"HTTPHeaders": {"content-type": "text/html"}}}
    world = made(submit_job=[page])
    lists = iter([page, listed(world.name)])
    world.client.list_jobs = lambda **_: asyncio.sleep(0, next(lists))
    world.client.meta.endpoint_url = "http://proxy"
    assert await world.send() == f"id-{world.name}"


async def test_search_outlasts_network_outage(made, clock):
    """If it gave up, an unknown job would remain."""
    away = clock.now() + 240

    def look(**_):
        return not_sent() if clock.now() < away else listed(world.name)

    world = made(submit_job=[no_answer()], list_jobs=look)
    assert await world.send() == f"id-{world.name}"
    assert world.submitted() == [world.name]


async def test_failed_search_warns_of_possible_job(made):
    denied = refusal("AccessDeniedException", 403, "not authorized")
    world = made(submit_job=[no_answer()], list_jobs=[denied])
    with pytest.raises(ServiceError, match="SubmitJob.*whether job simulate-.*ListJobs"):
        await world.send()
    assert not world.ticket.withdraw()
    assert len(world.submitted()) == 1


@pytest.mark.parametrize("kind", ["outcomes", "streams", "attempts", "values"])
async def test_started_unlisted_job_is_not_resubmitted(made, clock, kind):
    """The job has stored something, but no list returns it for minutes."""
    away = clock.now() + 200

    def look(**_):
        return NOTHING if clock.now() < away else listed(world.name)

    world = made(submit_job=[no_answer()], list_jobs=look)
    await world.store.put(f"v1/run/{kind}/{world.name}/0", [b"x"])
    assert await world.send() == f"id-{world.name}"
    assert world.submitted() == [world.name]
    assert await world.keys() == [world.first.bundle_key]


async def test_started_never_listed_job_is_reported(made):
    world = made(submit_job=[no_answer()], list_jobs=lambda **_: NOTHING)
    await world.store.put(f"v1/run/streams/{world.name}/0/1/stdout/00000000", [b"x"])
    with pytest.raises(
        ServiceError, match=r"whether job simulate-.* the job has started, but no list"
    ):
        await world.send()
    assert world.submitted() == [world.name]
    assert not world.ticket.withdraw()


# --- no answer and no job: the bundle is withdrawn --------------------------------------------


@pytest.mark.parametrize("failure", [no_answer(), refusal("ServerException", 500)])
async def test_missing_job_is_resubmitted_without_payload(failure, made):
    """The payload is moved before, so that a late job finds none."""
    looked = []

    async def submit(**_):
        looked.append(len(world.client.asked("list_jobs")))
        if len(looked) == 1:
            return failure
        assert await world.store.get(world.first.bundle_key) is None
        return ACCEPTED

    world = made(submit_job=submit, list_jobs=lambda **_: NOTHING)
    assert await world.send() == "job-1"
    assert looked == [0, LOOKS + 1]
    assert world.submitted() == [world.name, world.bundle.where.bundle]
    assert world.bundle.where != world.first
    assert world.notified == [world.bundle.where]
    assert await world.keys() == [world.bundle.where.bundle_key]
    assert await world.store.get(world.bundle.where.bundle_key) == world.data


async def test_job_listed_during_withdrawal_is_restored(made):
    def look(**_):
        return listed(world.name) if len(world.client.asked("list_jobs")) > LOOKS else NOTHING

    world = made(submit_job=[no_answer()], list_jobs=look)
    assert await world.send() == f"id-{world.name}"
    assert world.submitted() == [world.name]
    assert world.bundle.where == world.first
    assert await world.keys() == [world.first.bundle_key]
    assert await world.store.get(world.first.bundle_key) == world.data


async def test_job_started_during_withdrawal_is_restored(made):
    """One array task has started, and the others need the bundle."""

    async def look(**_):
        looks = len(world.client.asked("list_jobs"))
        if looks == LOOKS + 1:
            await world.store.put(f"v1/run/outcomes/{world.name}/3", [b"x"])
        return listed(world.name) if looks > LOOKS + 2 else NOTHING

    world = made(submit_job=[no_answer()], list_jobs=look)
    assert await world.send() == f"id-{world.name}"
    assert await world.keys() == [world.first.bundle_key]


async def test_late_withdrawn_job_is_terminated(made, caplog):
    def look(name="", **wanted):
        (found,) = wanted["filters"][0]["values"]
        late = len(world.client.asked("list_jobs")) > LOOKS + 3
        return listed(world.name) if late and found == world.name else NOTHING

    world = made(submit_job=[no_answer(), ACCEPTED], list_jobs=look, terminate_job=lambda **_: {})
    assert await world.send() == "job-1"
    await asyncio.sleep(3600)
    (ended,) = world.client.asked("terminate_job")
    assert ended["jobId"] == f"id-{world.name}"
    name = world.bundle.where.bundle
    assert ended["reason"].endswith(f"if it was submitted again, it is job {name}")
    assert "appeared after it was withdrawn" in caplog.messages[-1]


@pytest.mark.timing(withdrawn_polls_s=())  # time passes during requests to the store
async def test_retries_end_after_minute_without_payload(made, clock):
    begun = clock.now()
    world = made(submit_job=lambda **_: no_answer(), list_jobs=lambda **_: NOTHING)
    with pytest.raises(ServiceError, match=r"SubmitJob: .*; tried \d+ times in \d+ s") as caught:
        await world.send()
    assert 60 <= clock.now() - begun < 110
    assert f"tried {len(world.submitted())} times" in str(caught.value)
    assert world.ticket.withdraw()
    assert set(await world.keys()) <= set(world.bundle.keys)


async def test_unmovable_payload_is_reported(made):
    world = made(submit_job=[no_answer()], list_jobs=lambda **_: NOTHING)
    sending = asyncio.ensure_future(world.send())
    await asyncio.sleep(5)
    await world.store.delete([world.first.bundle_key])
    copying = "whether job simulate-.*CopyObject of s3://bucket/v1/run/bundles/simulate-"
    with pytest.raises(ServiceError, match=copying):
        await sending
    assert world.submitted() == [world.name]
    assert world.bundle.where == world.first


@pytest.mark.parametrize("operation", ["delete", "is_there", "find"])
async def test_failed_withdrawal_keeps_payload_and_warns(made, monkeypatch, operation):
    denied = refusal("AccessDeniedException", 403, "not authorized")

    def look(**_):
        is_last = len(world.client.asked("list_jobs")) > LOOKS
        return denied if operation == "find" and is_last else NOTHING

    world = made(submit_job=[no_answer()], list_jobs=look)

    async def refused(*_):
        if world.bundle.where != world.first:  # during the withdrawal
            raise ServiceError("no")
        return False

    if operation != "find":
        monkeypatch.setattr(world.store, operation, refused)
    with pytest.raises(ServiceError, match="SubmitJob.*whether job simulate-"):
        await world.send()
    assert not world.ticket.withdraw()  # its bundle stays
    assert world.bundle.where == world.first
    assert await world.keys() == [world.first.bundle_key]


@pytest.mark.timing(submit_retry_s=0.0)
async def test_job_of_last_request_is_adopted(made):
    """It is listed when no further attempt is left."""
    looked = []

    def look(**wanted):
        looked.extend(wanted["filters"][0]["values"])
        is_late = len(world.submitted()) == 2 and looked.count(last()) > LOOKS
        return listed(last()) if is_late else NOTHING

    def last():
        return world.submitted()[-1]

    world = made(submit_job=lambda **_: no_answer(), list_jobs=look)
    assert await world.send() == f"id-{last()}"
    assert world.bundle.where.bundle == last()
    assert await world.keys() == [world.bundle.where.bundle_key]
    assert not world.ticket.withdraw()


@pytest.mark.timing(submit_retry_s=0.0)
async def test_late_last_job_is_terminated(made):
    looked = []

    def look(**wanted):
        looked.extend(wanted["filters"][0]["values"])
        last = world.submitted()[-1]
        is_late = len(world.submitted()) == 2 and looked.count(last) > LOOKS + 2
        return listed(last) if is_late else NOTHING

    world = made(submit_job=lambda **_: no_answer(), list_jobs=look, terminate_job=lambda **_: {})
    with pytest.raises(ServiceError, match="tried 2 times"):
        await world.send()
    assert world.ticket.withdraw()
    await asyncio.sleep(3600)
    ended = {call["jobId"] for call in world.client.asked("terminate_job")}
    assert f"id-{world.submitted()[-1]}" in ended


async def test_late_cancelled_job_is_terminated(made):
    def look(**_):
        late = len(world.client.asked("list_jobs")) > LOOKS + 2
        return listed(world.name) if late else NOTHING

    world = made(submit_job=[no_answer()], list_jobs=look, terminate_job=lambda **_: {})
    waiting = await cancelled(world, after_s=1)
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    assert world.ticket.withdraw()
    assert await world.store.get(world.first.bundle_key) is None
    await asyncio.sleep(3600)
    (ended,) = world.client.asked("terminate_job")
    assert ended["jobId"] == f"id-{world.name}"


# --- cancelled waits --------------------------------------------------------------------------


class Slow:
    """Answers SubmitJob when the test releases it."""

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


async def cancelled(world, *, after_s):
    waiting = asyncio.ensure_future(world.send())
    await asyncio.sleep(after_s)
    waiting.cancel()
    return waiting


async def test_queued_request_is_withdrawn(made):
    world = made(submit_job=lambda **_: ACCEPTED)
    another = JobSpec("another", 1, {}, SETTINGS)
    await world.backend.prepare(another)
    others = [asyncio.ensure_future(world.backend.submit(another, Ticket())) for _ in range(100)]
    waiting = await cancelled(world, after_s=0.5)
    await asyncio.sleep(0)
    assert waiting.cancelled()
    await asyncio.gather(*others)
    assert set(world.submitted()) == {"another"}


async def test_throttled_request_is_withdrawn(made):
    world = made(submit_job=lambda **_: THROTTLED)
    waiting = await cancelled(world, after_s=60)
    await asyncio.sleep(0)
    assert waiting.cancelled()
    asked = len(world.client.calls)
    await asyncio.sleep(60)
    assert len(world.client.calls) == asked


@pytest.mark.parametrize("reply", [THROTTLED, no_answer(), not_sent()])
async def test_failed_cancelled_request_is_not_repeated(reply, made):
    world = made(list_jobs=lambda **_: NOTHING)
    slow = Slow(reply)
    world.client.submit_job = slow.submit_job
    waiting = await cancelled(world, after_s=1)
    slow.answers.set()
    await asyncio.gather(waiting, return_exceptions=True)
    await asyncio.sleep(120)
    assert waiting.cancelled()
    assert slow.asked == 1
    assert world.ticket.withdraw()  # so that its bundle is deleted, in case the job is late


@pytest.mark.parametrize("cancels", [1, 2])
async def test_accepted_job_after_cancel_is_terminated(made, cancels):
    world = made(terminate_job=lambda **_: {})
    slow = Slow()
    world.client.submit_job = slow.submit_job
    waiting = asyncio.ensure_future(world.send())
    for _ in range(cancels):
        await asyncio.sleep(1)
        waiting.cancel()
    await asyncio.sleep(1)
    slow.answers.set()
    await asyncio.sleep(1)
    assert waiting.cancelled()
    assert [call["jobId"] for call in world.client.asked("terminate_job")] == ["job-1"]


async def test_unanswered_job_after_cancel_is_terminated(made):
    world = made(submit_job=[no_answer()], terminate_job=lambda **_: {})
    lists = iter([NOTHING, listed(world.name)])
    world.client.list_jobs = lambda **_: asyncio.sleep(0, next(lists))
    waiting = await cancelled(world, after_s=0.3)
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    assert [c["jobId"] for c in world.client.asked("terminate_job")] == [f"id-{world.name}"]


async def test_rejected_job_after_cancel_is_silent(made, caplog):
    world = made()
    slow = Slow(refusal("ClientException", 400, "no"))
    world.client.submit_job = slow.submit_job
    waiting = await cancelled(world, after_s=1)
    slow.answers.set()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    assert not caplog.messages
