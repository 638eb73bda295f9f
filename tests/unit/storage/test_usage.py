"""What is believed of what a running task says of its use."""

from __future__ import annotations

import json

import pytest

from farcall.storage import usage
from farcall_runtime import envelope
from tests.unit.fakes import store_in_memory
from tests.unit.transcripts import KEY, SUBMISSION, WHERE

SAID = {
    "attempt": 2,
    "memory_bytes": 5,
    "peak_memory_bytes": 7,
    "memory_limit_bytes": 9,
    "cpu_s": 1.5,
}


@pytest.fixture
def store():
    return store_in_memory()


async def put(store, said, key=KEY, name=None):
    context = name or WHERE.usage_key(0)
    await store.put(WHERE.usage_key(0), envelope.seal_usage(key, context, said), quick=True)


async def test_what_the_attempt_that_runs_has_stored_is_shown(store):
    assert await usage.now(store, SUBMISSION, 0, 2) is None
    await put(store, SAID)
    found = await usage.now(store, SUBMISSION, 0, 2)
    assert (found.memory_bytes, found.peak_memory_bytes, found.memory_limit_bytes) == (5, 7, 9)
    assert found.cpu_s == 1.5


async def test_what_somebody_else_has_stored_is_not(store):
    await put(store, SAID, key=b"other")
    assert await usage.now(store, SUBMISSION, 0, 2) is None
    await put(store, SAID, name=WHERE.usage_key(1))
    assert await usage.now(store, SUBMISSION, 0, 2) is None
    for data in (b"", b"{}", bytes(200), json.dumps(SAID).encode()):
        await store.put(WHERE.usage_key(0), [data], quick=True)
        assert await usage.now(store, SUBMISSION, 0, 2) is None
