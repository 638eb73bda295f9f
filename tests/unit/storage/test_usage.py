"""What is believed of what a running task says of its use."""

from __future__ import annotations

import json
import math

import pytest

from farcall.storage import usage
from farcall_runtime import envelope
from tests.unit.fakes import store_in_memory
from tests.unit.transcripts import KEY, NOW, SUBMISSION, WHERE

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


async def test_what_an_earlier_attempt_has_left_is_not(store):
    await put(store, SAID)
    assert await usage.now(store, SUBMISSION, 0, 3) is None


async def test_what_somebody_else_has_stored_is_not(store):
    await put(store, SAID, key=b"other")
    assert await usage.now(store, SUBMISSION, 0, 2) is None
    await put(store, SAID, name=WHERE.usage_key(1))
    assert await usage.now(store, SUBMISSION, 0, 2) is None
    for data in (b"", b"{}", bytes(200), json.dumps(SAID).encode()):
        await store.put(WHERE.usage_key(0), [data], quick=True)
        assert await usage.now(store, SUBMISSION, 0, 2) is None


async def test_what_is_too_large_is_not_fetched(store):
    await put(store, {**SAID, "more": "x" * 5000})
    assert await usage.now(store, SUBMISSION, 0, 2) is None


@pytest.mark.parametrize("name", SAID)
@pytest.mark.parametrize(
    "value",
    [-1, 10**400, 2**60, math.nan, math.inf, -math.inf, True, "5", "<b>", None, [5], {"a": 1}],
)
def test_what_is_no_plausible_number_counts_for_nothing(name, value):
    found = usage.checked({**SAID, name: value}, 2, NOW)
    if name == "memory_limit_bytes" and value is None:
        assert found is not None
    else:
        assert found is None


def test_what_says_less_counts_for_nothing():
    assert usage.checked({}, 2, NOW) is None
    assert usage.checked({**SAID, "memory_limit_bytes": 0}, 2, NOW).memory_limit_bytes is None
