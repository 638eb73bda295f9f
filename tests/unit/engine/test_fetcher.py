"""API requests for outcomes of failed calls, and objects to delete."""

from types import SimpleNamespace

import pytest

from farcall.engine.delivered import Output, Wanted
from farcall.engine.fetcher import Fetcher, _bytes_outside
from farcall.engine.worker_threads import WorkerThreads
from farcall.model.submission import Submission
from farcall.storage.store import Arrived
from tests.contract import make_golden as golden
from tests.unit.fakes import store_in_memory
from tests.unit.transcripts import Counted, put, written


@pytest.fixture
def threads():
    made = WorkerThreads()
    yield made
    made.close()


@pytest.mark.parametrize(("size", "questions"), [(1, 1), (100, 1), (101, 0), (10_000, 0)])
async def test_large_array_failures_skip_batch(size, questions, threads):
    asked = []

    async def describe(job_id):
        asked.append(job_id)

    store = store_in_memory()
    data = golden.outcome(golden.RAISED, 8, [b"no pickle"])
    await store.put(golden.WHERE.outcome_key(8), [data])
    submission = Submission("job", "name", golden.WHERE, golden.KEY, size)
    stores, tracker = SimpleNamespace(of=lambda _: store), SimpleNamespace(detail=describe)
    fetcher = Fetcher(SimpleNamespace(name="batch"), stores, tracker, threads)
    arrived = Arrived(golden.WHERE.bundle, 8, len(data))
    delivered = await fetcher.deliver(submission, 8, arrived, Wanted())
    (result,) = delivered.results
    assert "ValueError: wrong \u00fc" in str(result.error)
    assert len(asked) == questions


async def test_stored_chunks_are_counted_whole():
    """The count includes what is fetched for the end of an error's output."""
    store = store_in_memory()
    size = 1 << 20
    for n in range(3):
        await put(store, "stdout", n, bytes(size))
    what = written(3, 3 * size)
    counted = Counted(store)
    await what.end(counted)
    meta = {"status": "killed", **what.records}
    assert _bytes_outside(SimpleNamespace(meta=meta), Output.NONE) >= len(counted.asked) * size
