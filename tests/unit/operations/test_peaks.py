"""Peak memory of an array's children that succeeded: how it is read, and how seldom."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from farcall.model import clock
from farcall.model.errors import ServiceError
from farcall.model.jobs import JobDetail, JobStatus
from farcall.operations import peaks
from farcall.operations.peaks import MOST_OUTCOMES, Peaks
from farcall_runtime import envelope
from farcall_runtime.contract import ENV_BUNDLE, ENV_DIGEST, ENV_OUTCOME_KEY, Location
from tests.unit.fakes import store_in_memory

WHERE = Location("bucket", "farcall/v1/run", "bundle")
KEY = b"k" * 32
SIZE = 10_000


class Counted:
    """A store that counts what is asked of it.

    Attributes:
        asked: The keys.
        refusal: What is raised in place of an answer.
    """

    def __init__(self, store):
        self._store = store
        self.asked = []
        self.refusal = None

    async def _ask(self, name, key, *args, **options):
        self.asked.append(key)
        if self.refusal is not None:
            raise self.refusal
        return await getattr(self._store, name)(key, *args, **options)

    async def get_dated(self, key, **options):
        return await self._ask("get_dated", key, **options)

    async def get_start(self, key, length):
        return await self._ask("get_start", key, length)


@pytest.fixture
def store():
    return store_in_memory()


@pytest.fixture
def counted(store):
    return Counted(store)


@pytest.fixture
def read(counted, monkeypatch):
    """Read what there is, some seconds after the last time; return the array's peaks."""
    now = [1000.0]
    monkeypatch.setattr(clock, "now", lambda: now[0])
    known = Peaks(SimpleNamespace(stores=SimpleNamespace(of=lambda _: counted)))

    async def look(parent, succeeded, seconds=2.0):
        now[0] += seconds
        counted.asked.clear()
        is_due = known.are_left(parent, succeeded)
        await known.read(parent, succeeded)
        assert is_due == bool(counted.asked)
        return known.of(parent.job_id)

    return look


def array(status=JobStatus.SUCCEEDED):
    environment = {
        ENV_BUNDLE: WHERE.url,
        ENV_DIGEST: "0" * 64,
        ENV_OUTCOME_KEY: KEY.hex(),
    }
    return JobDetail("array", "n", status, array_size=SIZE, environment=environment)


def outcome(index, meta, key=KEY):
    return b"".join(envelope.seal_outcome(key, WHERE.outcome_key(index), meta, b"", b"", [b"x"]))


async def put(store, index, peak):
    meta = {"status": "done", "usage": {"peak_memory_bytes": peak}}
    await store.put(WHERE.outcome_key(index), [outcome(index, meta)], quick=True)


async def receipt(store, peaks, number=0, key=KEY):
    name = WHERE.receipt_key(number)
    await store.put(name, envelope.seal_receipt(key, name, b"\xff", peaks), quick=True)


@pytest.fixture
def read_all(read, counted):
    """Read until nothing is left; return the peaks and how many requests it took."""

    async def look_again(parent, succeeded):
        requests = 0
        while True:
            found = await read(parent, succeeded)
            if not counted.asked:
                return found, requests
            requests += len(counted.asked)

    return look_again


async def test_of_many_outcomes_a_sample_is_read_that_is_spread_over_all(read_all, store):
    for index in range(SIZE):
        await put(store, index, (index + 1) * 1024)
    found, requests = await read_all(array(), range(SIZE))
    assert requests == MOST_OUTCOMES + 1  # and one for a receipt
    assert len(found) == MOST_OUTCOMES
    assert all(peak == (index + 1) * 1024 for index, peak in found.items())
    for tenth in range(10):
        there = [n for n in found if n * 10 // SIZE == tenth]
        assert 20 <= len(there) <= 40


async def test_what_was_taken_is_known_by_a_request(read, store, counted):
    await receipt(store, [(n + 1) * 100 for n in range(SIZE)])
    found = await read(array(), range(SIZE))
    assert len(counted.asked) == 2  # the second client's, that is not there
    assert len(found) == SIZE
    assert found[7] == 800 * 1024
    assert len(b"".join(envelope.seal_receipt(KEY, "k", b"", [0] * SIZE))) < 64 * 1024


async def test_while_values_are_taken_no_outcomes_are_asked_for(read, store, counted):
    running = array(JobStatus.PENDING)
    await receipt(store, [100])
    assert await read(running, [0, 1, 2]) == {0: 102400}
    assert len(counted.asked) == 2
    await read(running, [0, 1, 2])
    assert counted.asked == []
    await receipt(store, [100, 0, 300])
    assert await read(running, [0, 1, 2], 10) == {0: 102400, 2: 307200}
    await put(store, 1, 5)
    assert await read(array(), [0, 1, 2]) == {0: 102400, 1: 5, 2: 307200}


async def test_where_all_was_taken_and_deleted_little_is_asked(read_all):
    found, requests = await read_all(array(), range(SIZE))
    assert (found, requests) == ({}, 51)


async def test_what_strangers_have_stored_counts_for_nothing(read, store, counted):
    await receipt(store, [100], key=b"other")
    await receipt(store, [0, 7], number=1)
    texts = [b"", b"x" * 100, outcome(3, {}), outcome(4, {"usage": 5}), outcome(5, {"usage": {}})]
    for index, data in enumerate(texts, 1):
        await store.put(WHERE.outcome_key(index), [data], quick=True)
    for index, peak in enumerate([-1, True, "9", 2**60, 1.5, None, [1]], 10):
        await put(store, index, peak)
    assert await read(array(), range(20)) == {1: 7168}


async def test_an_outcome_of_many_calls_is_passed_by(read, store):
    meta = {"results": [{"status": "returned"}] * 1000, "usage": {"peak_memory_bytes": 5}}
    await store.put(WHERE.outcome_key(0), [outcome(0, meta)], quick=True)
    assert await read(array(), [0]) == {}


async def test_who_may_not_read_is_not_told(read_all, counted):
    counted.refusal = ServiceError("no", operation="GetObject", code="AccessDenied", status=403)
    found, requests = await read_all(array(), range(SIZE))
    assert (found, requests) == ({}, 51)


async def test_an_array_that_farcall_did_not_submit_is_left_alone(read, counted):
    foreign = replace(array(), environment={})
    known = Peaks(SimpleNamespace(stores=None))
    assert await known.read(foreign, [1]) == []
    assert not known.are_left(foreign, [1])


async def test_few_arrays_are_remembered(store, counted, monkeypatch):
    monkeypatch.setattr(peaks, "_MOST_ARRAYS", 2)
    known = Peaks(SimpleNamespace(stores=SimpleNamespace(of=lambda _: counted)))
    await put(store, 0, 5)
    for number in range(3):
        await known.read(replace(array(), job_id=f"array{number}"), [0])
    assert [known.of(f"array{number}") for number in range(3)] == [{}, {0: 5}, {0: 5}]
