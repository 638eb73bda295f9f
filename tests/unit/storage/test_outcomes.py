"""Objects of a task that can be deleted after its result was collected."""

from farcall.model.submission import Submission
from farcall.storage.outcomes import deletable_keys, failed_keys
from farcall_runtime.contract import STREAMS, VALUE_PART_BYTES
from tests.contract import make_golden as golden
from tests.unit.fakes import store_in_memory


async def test_value_parts_of_attempts_are_spent():
    store = store_in_memory()
    where = golden.WHERE
    array = Submission("job", "work", where, golden.KEY, 10)
    left = [where.value_key(8, attempt, part) for attempt in (1, 2) for part in range(3)]
    for key in left:  # the first attempt stored no outcome, because its host was lost
        await store.put(key, [b"x"])
    meta = {"attempt": 1, "value": {"size": 2 * VALUE_PART_BYTES + 1}}
    meta |= {stream: {"chunks": 0} for stream in STREAMS}

    outcome = where.outcome_key(8)
    assert set(await deletable_keys(store, array, 8, meta)) == {outcome, *left[:3]}
    meta["attempt"] = 2
    assert {outcome, *left} < set(await deletable_keys(store, array, 8, meta))


async def test_node_outcomes_of_attempts_are_spent():
    where = golden.WHERE
    gang = Submission("job", "work", where, golden.KEY, 1, nodes=4)
    meta = {"attempt": 2, "value": {"size": 1}, **{stream: {"chunks": 0} for stream in STREAMS}}

    assert await deletable_keys(store_in_memory(), gang, 3, meta) == [
        where.node_key(2, 3),
        where.value_key(3, 2, 0),
        where.node_key(1, 3),
    ]


async def test_objects_of_failed_tasks_are_listed():
    store = store_in_memory()
    where = golden.WHERE
    array = Submission("job", "work", where, golden.KEY, 20)

    def objects(index):
        chunk = where.chunk_key(index, 1, STREAMS[0], 0)
        keys = [where.outcome_key(index), where.attempt_key(index, 1), chunk]
        return [*keys, where.value_key(index, 1, 0), where.followed_key(index)]

    failed = [*objects(1), where.retry_key("work-2")]
    for key in (*failed, *objects(10), where.bundle_key):
        await store.put(key, [b"x"])

    assert sorted(await failed_keys(store, array, {1})) == sorted(failed)
