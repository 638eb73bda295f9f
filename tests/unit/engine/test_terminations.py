import asyncio
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest

from farcall.engine.terminations import Terminations
from farcall.model.errors import ServiceError
from farcall.model.submission import Submission
from farcall.storage.store import Stores
from farcall_runtime.contract import CANCELLED, Location
from tests.support.patience import PATIENCE_S
from tests.unit.fakes import Client, ScriptedBatch, access_in_memory, refusal

WHERE = Location("bucket", "farcall/v1/run", "0" * 16)
ARRAY = Submission("a", "name", WHERE, bytes(32), 4)
CHILDREN = [ARRAY.id_of(index) for index in range(4)]


class Looking:
    """The tracker's interface for ends of jobs."""

    def __init__(self):
        self.polled = []
        self.known = {}
        self.left = {}  # unfinished tasks by array

    def submission(self, job_id):
        return self.known.get(job_id)

    def unfinished(self, job_id):
        return self.left.get(job_id)

    def poll_soon(self, job_ids):
        self.polled += job_ids


@pytest.fixture
async def client(clock):
    return Client(terminate_job=lambda **_: {})


@pytest.fixture
async def tracker():
    return Looking()


@pytest.fixture
async def stores(timing):
    return Stores(access_in_memory(timing))


@pytest.fixture
async def terminations(client, tracker, stores):
    return Terminations(ScriptedBatch(client), tracker, stores)


def ended(client):
    return [call["jobId"] for call in client.asked("terminate_job")]


async def test_jobs_are_terminated_and_polled(terminations, client, tracker):
    await terminations.end(["x", "y", "x"], "enough")
    assert ended(client) == ["x", "y"]
    assert tracker.polled == ["x", "y"]


async def test_each_refused_job_is_returned(terminations, client):
    def terminate(*, jobId, **_):  # noqa: N803  # Batch's name
        return refusal("AccessDenied", 403) if jobId == "y" else {}

    client.terminate_job = Client(terminate_job=terminate).terminate_job
    refused = await terminations.end(["x", "y", "z"], "enough")
    assert list(refused) == ["y"]
    assert refused["y"].code == "AccessDenied"


async def test_fully_named_array_needs_one_request(terminations, client, tracker):
    tracker.left["a"] = [0, 1, 2, 3]
    await terminations.end(["x", *CHILDREN], "enough")
    assert ended(client) == ["x", "a"]


async def test_ended_tasks_need_not_be_named(terminations, client, tracker):
    tracker.left["a"] = [0, 1, 3]
    await terminations.end([CHILDREN[3], CHILDREN[0], CHILDREN[1]], "enough")
    assert ended(client) == ["a"]


async def test_unnamed_task_keeps_running(terminations, client, tracker):
    tracker.left["a"] = [0, 1, 2, 3]
    await terminations.end(CHILDREN[1:], "enough")
    assert ended(client) == CHILDREN[1:]


async def test_last_task_is_terminated_by_id(terminations, client, tracker):
    tracker.left["a"] = [3]
    await terminations.end(CHILDREN[3:], "enough")
    assert ended(client) == CHILDREN[3:]


async def test_unknown_array_tasks_are_terminated_individually(terminations, client):
    await terminations.end(CHILDREN, "enough")
    assert ended(client) == CHILDREN


async def test_concurrent_terminations_are_merged(terminations, client, tracker):
    tracker.left["a"] = [0, 1, 2, 3]
    await asyncio.gather(*(terminations.end([child], "enough") for child in CHILDREN))
    assert client.asked("terminate_job") == [{"jobId": "a", "reason": "farcall: enough"}]
    await terminations.end(["x"], "enough")
    assert ended(client) == ["a", "x"]


async def test_each_task_keeps_its_reason(terminations, client, tracker):
    tracker.left["a"] = [0, 1, 2, 3]
    reasons = ["one", "two", "one", "two"]
    pairs = zip(CHILDREN, reasons, strict=True)
    await asyncio.gather(*(terminations.end([child], reason) for child, reason in pairs))
    reasons_by_id = {call["jobId"]: call["reason"] for call in client.asked("terminate_job")}
    assert [reasons_by_id[child] for child in CHILDREN] == [
        f"farcall: {reason}" for reason in reasons
    ]


async def test_refusal_reaches_every_caller(terminations, client):
    client.terminate_job = Client(
        terminate_job=lambda jobId, **_: refusal("AccessDenied", 403) if jobId == "x" else {}  # noqa: N803
    ).terminate_job
    asked = [terminations.end([job_id], "enough") for job_id in "xxy"]
    first, second, other = await asyncio.gather(*asked)
    assert isinstance(first["x"], ServiceError)
    assert first == second
    assert other == {}


async def test_request_outlives_cancelled_wait(terminations, client):
    waiting = asyncio.ensure_future(terminations.end(["x"], "enough"))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await terminations.settle()
    assert ended(client) == ["x"]


# --- exits ------------------------------------------------------------------------------------


async def test_termination_cut_off_is_repeated(terminations, client):
    waiting = [asyncio.ensure_future(terminations.end([name], "enough")) for name in "xy"]
    await asyncio.sleep(0)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()  # before the requests take their first step
    await asyncio.gather(*waiting, return_exceptions=True)
    assert ended(client) == []
    await terminations.settle()
    assert ended(client) == ["x", "y"]
    assert client.calls[0][1]["reason"] == "farcall: enough"


async def test_settle_flushes_merged_terminations(terminations, client):
    waiting = asyncio.ensure_future(terminations.end(["x"], "enough"))
    await asyncio.sleep(0)
    await terminations.settle()
    assert ended(client) == ["x"]
    await waiting


async def test_leave_logs_number_of_terminated_tasks(terminations, client, tracker, caplog):
    tracker.left["a"] = [0, 1, 2, 3]
    await terminations.leave([*CHILDREN, "x"], 5, "left")
    assert ended(client) == ["a", "x"]
    assert [record.message for record in caplog.records] == [
        "cancelling 5 unfinished tasks of 2 jobs (a, x) (left); press Ctrl-C to exit at once",
        "cancelled 5 unfinished tasks of 2 jobs (a, x)",
    ]


async def test_leave_warns_of_jobs_still_running(terminations, client, caplog):
    client.terminate_job = Client(terminate_job=[refusal("AccessDenied", 403)]).terminate_job
    await terminations.leave(["x"], 1, "left")
    assert "they may still run: TerminateJob was refused" in caplog.text


async def test_leave_one_logs_refusal_without_raising(terminations, client, caplog):
    refused = refusal("AccessDenied", 403)
    client.terminate_job = Client(terminate_job=lambda **_: refused).terminate_job
    await asyncio.gather(*(terminations.leave_one(job_id, "left") for job_id in "xy"))
    assert "cancelling 2 tasks (left)" in caplog.text
    warnings = [record.message for record in caplog.records if "may still run" in record.message]
    assert len(warnings) == 1
    assert warnings[0].startswith("2 jobs (x, y) may still run: TerminateJob was refused")


async def test_failure_without_waiter_is_logged(terminations, client, caplog):
    client.terminate_job = Client(terminate_job=[refusal("AccessDenied", 403)]).terminate_job
    waiting = asyncio.ensure_future(terminations.end(["x"], "enough"))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await terminations.settle()
    assert "1 job (x) may still run: TerminateJob was refused" in caplog.text


async def test_ctrl_c_logs_unterminated_jobs(terminations, client, caplog):
    received = []

    def handle(number, _frame):
        received.append(number)

    before = signal.signal(signal.SIGINT, handle)
    try:
        client.terminate_job = Client(terminate_job=lambda **_: asyncio.sleep(600)).terminate_job
        leaving = asyncio.ensure_future(terminations.leave(["x", "y"], 2, "left"))
        await asyncio.sleep(1)
        signal.raise_signal(signal.SIGINT)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        assert received == [signal.SIGINT]
        assert "exited without cancelling 2 jobs (x, y)" in caplog.text

        await terminations.leave(["z"], 1, "left")  # an outer block
        assert "exited without cancelling 1 unfinished task of 1 job (z)" in caplog.text
        await asyncio.wait_for(terminations.settle(), PATIENCE_S)
        signal.raise_signal(signal.SIGINT)
        assert received == [signal.SIGINT] * 2
    finally:
        assert signal.signal(signal.SIGINT, before) is handle
    assert caplog.text.count("exited without") == 2


# --- markers of array tasks -------------------------------------------------------------------


class Marking(ScriptedBatch):
    """Platform that needs markers, and records them when it terminates jobs."""

    capabilities = replace(ScriptedBatch.capabilities, marks_ended_children=True)

    def __init__(self, client, stores):
        super().__init__(client)
        self._stores = stores
        self.marked = []
        self.described = {}
        self.asked_for = []

    async def terminate(self, job_ids, reason):
        listed = await self._stores.of("bucket").list_keys(f"{WHERE.bundle_key}{CANCELLED}")
        self.marked.append(sorted(key.rpartition("/")[2] for key, _ in listed))
        return await super().terminate(job_ids, reason)

    async def describe(self, job_ids):
        self.asked_for += job_ids
        return {job_id: self.described[job_id] for job_id in job_ids if job_id in self.described}


@pytest.fixture
async def marking(client, stores):
    return Marking(client, stores)


async def test_tasks_are_marked_before_termination(marking, client, tracker, stores):
    tracker.known["a"] = ARRAY
    ending = Terminations(marking, tracker, stores)
    await ending.end(["a:1", "x", "a:3"], "enough")
    assert (marking.marked, marking.asked_for) == ([["1", "3"]], [])
    assert sorted(ended(client)) == ["a:1", "a:3", "x"]


async def test_whole_array_needs_no_marker(marking, tracker, stores):
    tracker.known["a"] = ARRAY
    ending = Terminations(marking, tracker, stores)
    tracker.left["a"] = [0, 1, 2, 3]
    await ending.end([*CHILDREN, "x"], "enough")
    assert marking.marked == [[]]


async def test_unwatched_array_is_described_for_markers(marking, tracker, stores):
    marking.described["a"] = SimpleNamespace(
        job_id="a",
        name="name",
        is_command=False,
        environment={
            "FARCALL_BUNDLE": WHERE.url,
            "FARCALL_OUTCOME_KEY": ARRAY.key.hex(),
            "FARCALL_DIGEST": "",
        },
        nodes=0,
        array_size=4,
    )
    ending = Terminations(marking, tracker, stores)
    await ending.end(["a:2", "other:1"], "enough")
    assert marking.marked == [["2"]]
    assert sorted(marking.asked_for) == ["a", "other"]


async def test_failed_marker_prevents_termination(marking, client, tracker, stores, monkeypatch):
    async def refuse(*_):
        raise ServiceError("no", code="AccessDenied")

    monkeypatch.setattr("farcall.engine.terminations.mark_cancelled", refuse)
    tracker.known["a"] = ARRAY
    refused = await Terminations(marking, tracker, stores).end(["a:1"], "enough")
    assert [error.code for error in refused.values()] == ["AccessDenied"]
    assert ended(client) == []
