"""What is asked of Batch for the outcomes of calls that raised."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from contract import make_golden as golden
from farcall.delivery import Courier
from farcall.store import Arrived
from farcall.submission import Submission
from unit.fakes import store_in_memory


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
