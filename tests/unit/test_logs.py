from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
from obstore.store import MemoryStore

from farcall import logs
from farcall.details import JobDetail, JobStatus
from farcall.errors import IntegrityError
from farcall.store import Store
from farcall.submission import Submission
from farcall_runtime import envelope
from farcall_runtime.contract import Location
from unit.fakes import Client, refusal

WHERE = Location("bucket", "farcall/v1/run", "bundle")
KEY = b"k" * 32
SUBMISSION = Submission("job-1", "n", WHERE, KEY, 1)
DETAIL = JobDetail(
    "job-1", "n", status=JobStatus.FAILED, log_group="/aws/batch/job", log_stream="d/default/a1"
)


@pytest.fixture
def store():
    return Store("bucket", MemoryStore())


async def put(store, stream, sequence, data, attempt=1, key=KEY):
    name = WHERE.chunk_key(0, attempt, stream, sequence)
    await store.put(name, envelope.seal_chunk(key, name, data))


def access(**operations):
    client = Client(**operations)

    @contextlib.asynccontextmanager
    async def lend(service):
        assert service == "logs"
        yield client

    return SimpleNamespace(client=lend), client


def page(*lines, token):
    return {"events": [{"message": line} for line in lines], "nextForwardToken": token}


async def test_chunks_are_joined_in_their_order(store):
    for n in range(12):
        await put(store, "stdout", n, b"%d," % n)
    found = await logs.read_chunks(store, SUBMISSION, 0, 1, "stdout", {"chunks": 11, "stored": 23})
    assert found == b"0,1,2,3,4,5,6,7,8,9,10,"


async def test_a_forged_chunk_is_refused_with_its_key(store):
    await put(store, "stdout", 0, b"x", key=b"other")
    with pytest.raises(IntegrityError, match=r"streams/bundle/0/1/stdout/00000000 is not"):
        await logs.read_chunks(store, SUBMISSION, 0, 1, "stdout", {"chunks": 1, "stored": 1})


async def test_a_deleted_chunk_leaves_a_note(store):
    for n in (0, 3):
        await put(store, "stdout", n, b"%d," % n)
    found = await logs.read_chunks(store, SUBMISSION, 0, 1, "stdout", {"chunks": 4, "stored": 8})
    assert found == b"0,\n[farcall: 4 bytes were deleted from the bucket]\n3,"


async def test_a_tail_brings_what_is_new(store):
    tail = logs.Tail(store, SUBMISSION, 0)
    assert await tail.read() == []
    await put(store, "stdout", 0, b"a")
    await put(store, "stderr", 0, b"e")
    assert sorted(await tail.read()) == [(1, "stderr", b"e"), (1, "stdout", b"a")]
    await put(store, "stdout", 1, b"b")
    await put(store, "stdout", 0, b"again", attempt=2)
    assert await tail.read() == [(1, "stdout", b"b"), (2, "stdout", b"again")]
    assert await tail.read() == []


async def test_an_empty_page_is_not_the_end_of_a_log():
    pages = [page("a", token="1"), page(token="2"), page("b", token="3"), page(token="3")]
    opened, client = access(get_log_events=pages)
    assert [line async for line in logs.cloudwatch(opened, DETAIL)] == ["a", "b"]
    tokens = [call.get("nextToken") for call in client.asked("get_log_events")]
    assert tokens == [None, "1", "2", "3"]


async def test_a_job_that_never_ran_has_no_log():
    opened, client = access()
    never = JobDetail("j", "n", status=JobStatus.FAILED)
    assert [line async for line in logs.cloudwatch(opened, never)] == []
    assert await logs.last_lines(opened, never) == ""
    assert (logs.url("us-east-1", never), client.calls) == (None, [])


async def test_a_missing_log_hides_no_failure():
    opened, _ = access(get_log_events=[refusal("ResourceNotFoundException", 400)])
    assert await logs.last_lines(opened, DETAIL) == ""


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("eu-west-1.console.aws.amazon.com", "eu-west-1"),
        ("console.amazonaws.cn", "cn-north-1"),
        ("console.amazonaws-us-gov.com", "us-gov-west-1"),
    ],
)
def test_a_log_s_address_is_quoted_as_the_console_wants_it(host, region):
    assert logs.url(region, DETAIL) == (
        f"https://{host}/cloudwatch/home?region={region}"
        "#logsV2:log-groups/log-group/$252Faws$252Fbatch$252Fjob/log-events/d$252Fdefault$252Fa1"
    )
