"""What is asked of Batch for the outcomes of calls that raised, and what is left to delete."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from farcall.engine.fetcher import Courier
from farcall.model.submission import Submission
from farcall.storage.outcomes import spent_keys
from farcall.storage.store import Arrived
from farcall_runtime.contract import STREAMS, VALUE_PART_BYTES
from tests.contract import make_golden as golden
from tests.unit.fakes import store_in_memory


@pytest.mark.parametrize(("size", "questions"), [(1, 1), (100, 1), (101, 0), (10_000, 0)])
async def test_a_raised_call_of_a_large_array_is_no_question_to_batch(size, questions):
    asked = []

    async def describe(job_id):
        asked.append(job_id)

    store = store_in_memory()
    data = golden.outcome(golden.RAISED, 8, [b"no pickle"])
    await store.put(golden.WHERE.outcome_key(8), [data])
    submission = Submission("job", "name", golden.WHERE, golden.KEY, size)
    with ThreadPoolExecutor(1) as threads:
        delivered = await Courier(None, describe, threads).deliver(
            store, submission, 8, Arrived(golden.WHERE.bundle, 8, len(data))
        )
    (result,) = delivered.results
    assert "ValueError: wrong \u00fc" in str(result.error)
    assert len(asked) == questions


async def test_a_value_s_parts_are_of_no_more_use_and_those_of_earlier_attempts():
    store = store_in_memory()
    where = golden.WHERE
    left = [where.value_key(8, attempt, part) for attempt in (1, 2) for part in range(3)]
    for key in left:  # of the first attempt nobody told: its host went away
        await store.put(key, [b"x"])
    said = {"attempt": 1, "value": {"size": 2 * VALUE_PART_BYTES + 1}}
    said |= {stream: {"chunks": 0} for stream in STREAMS}

    outcome = where.outcome_key(8)
    assert set(await spent_keys(store, where, 8, said)) == {outcome, *left[:3]}
    said["attempt"] = 2
    assert {outcome, *left} < set(await spent_keys(store, where, 8, said))
